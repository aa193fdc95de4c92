"""Variables that hold several settings."""

from autotune.space.variables import allocator_settings, joined, settings_of


def test_what_stands_in_one_variable_is_joined_and_the_last_value_of_a_setting_holds() -> None:
    one = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False", "OMP_NUM_THREADS": "2"}
    other = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "4"}
    made = joined(one, other)
    assert made == {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True", "OMP_NUM_THREADS": "4"}


def test_libraries_are_preloaded_once_each_in_their_order() -> None:
    assert joined({"LD_PRELOAD": "a.so b.so"}, {"LD_PRELOAD": "b.so:c.so"}) == {"LD_PRELOAD": "a.so:b.so:c.so"}


def test_a_comma_inside_brackets_ends_no_setting() -> None:
    value = "roundup_power2_divisions:[64:8,128:4],expandable_segments:True"
    assert list(settings_of("PYTORCH_ALLOC_CONF", value)) == ["roundup_power2_divisions", "expandable_segments"]
    assert allocator_settings({"PYTORCH_ALLOC_CONF": value})["expandable_segments"] == "True"
