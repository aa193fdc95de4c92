"""Padding."""

from types import SimpleNamespace

from autotune.space.settings import Context
from autotune.space.settings.padding import SETTING
from tests.makers import cpu, workload
from tests.space.settings.fakes import observed

PADDED = workload(collating={"pad_to_multiple_of": None}, sequence_length=96)


def test_the_user_s_own_is_what_his_collator_says() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "none"
    assert SETTING.from_user(Context(cpu(), workload(pad_to_multiple_of=8))) == "8"


def test_it_is_an_argument_of_the_data() -> None:
    assert SETTING.apply("64", cpu()).data_arguments == {"pad_to_multiple_of": 64}
    assert SETTING.apply("none", cpu()).data_arguments == {"pad_to_multiple_of": None}


def test_it_is_read_back_from_the_trainer_s_collator_or_the_one_inside() -> None:
    pads = SimpleNamespace(pad_to_multiple_of=16)
    assert SETTING.read_back(observed(collator=pads)) == "16"
    assert SETTING.read_back(observed(collator=SimpleNamespace(inner=pads))) == "16"
    assert SETTING.read_back(observed(collator=print)) == "none"


def test_it_is_unavailable_as_the_data_say() -> None:
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert SETTING.unavailable("8", Context(cpu(), PADDED)) is None
    assert (
        SETTING.unavailable("8", Context(cpu(), workload(collating={"pad_to_multiple_of": "no such thing"})))
        == "no such thing"
    )
    assert "not known" in (SETTING.unavailable("8", Context(cpu(), workload())) or "")


def test_no_sample_grows_beyond_the_length_asked_for() -> None:
    assert SETTING.unavailable("32", Context(cpu(), PADDED)) is None
    assert "96 tokens" in (SETTING.unavailable("64", Context(cpu(), PADDED)) or "")


def test_a_coarser_multiple_is_hungrier() -> None:
    assert SETTING.needs_at_least_as_much("64", "8")
    assert SETTING.needs_at_least_as_much("8", "none")
    assert not SETTING.needs_at_least_as_much("8", "64")


def test_it_means_nothing_where_samples_are_packed() -> None:
    assert SETTING.active_if is not None
    name, means = SETTING.active_if
    assert (name, means("none"), means("flattening")) == ("packing", True, False)
