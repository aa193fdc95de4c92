"""What holds for every setting."""

from itertools import product
from pathlib import Path

import pytest

import autotune.space.settings
from autotune.space.settings import SETTINGS, Context, Setting
from tests.makers import cpu, gpu, workload

EVERY = pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))


def test_every_file_is_a_setting_and_every_setting_has_its_test() -> None:
    folder, here = Path(autotune.space.settings.__file__).parent, Path(__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__", "exclusion", "setting", "rules"} == set(SETTINGS)
    rows = (here / "test_rows.py").read_text(encoding="utf-8")
    assert not [name for name in SETTINGS if f'"{name}"' not in rows and not (here / f"test_{name}.py").exists()]


@EVERY
def test_its_values_are_read_as_they_are_written(setting: Setting) -> None:
    for value in setting.values:
        assert setting.read(str(value)) == value
        assert setting.read(value) == value
        assert type(setting.read(str(value))) is type(value)


@EVERY
@pytest.mark.parametrize("text", ["", "nonsense", "off", [], 1.5])
def test_what_is_no_value_is_refused(setting: Setting, text: object) -> None:
    with pytest.raises(ValueError, match=r"is (no|neither)"):
        setting.read(text)


@EVERY
def test_a_value_means_itself_once_applied(setting: Setting) -> None:
    for environment in (cpu(), gpu()):
        for value in setting.values or (1, 8):
            settings = setting.apply(value, environment)
            available = setting.unavailable(value, Context(environment, workload())) is None
            if settings.processes < 2 and settings.training_arguments and available:  # ranks are the launcher's
                assert setting.from_user(Context(environment, workload(), settings.training_arguments)) == value


@EVERY
def test_a_value_sets_something_unless_it_is_none(setting: Setting) -> None:
    for value in setting.values or (1, 8):
        settings = setting.apply(value, gpu())
        made = [part for name, part in vars(settings).items() if name not in ("contradicts", "defaults")]
        assert any(made) or value in ("none", "auto")


@EVERY
def test_what_it_needs_is_a_setting_that_needs_none_and_comes_before_it(setting: Setting) -> None:
    if setting.active_if is not None:
        other = SETTINGS[setting.active_if[0]]
        assert other.active_if is None
        assert list(SETTINGS).index(other.name) < list(SETTINGS).index(setting.name)
        assert {setting.active_if[1](value) for value in other.values} == {True, False}


@EVERY
def test_its_default_has_a_meaning_and_can_be_had_on_a_card(setting: Setting) -> None:
    own = setting.from_user(Context(gpu(), workload()))
    assert setting.read(str(own)) == own
    assert setting.unavailable(own, Context(gpu(), workload())) is None


@EVERY
def test_the_order_of_memory_is_a_partial_order(setting: Setting) -> None:
    values, needs = setting.values or (1, 2, 4, 8), setting.costs.needs_at_least_as_much
    for one in values:
        assert needs(one, one)
    for one, two in product(values, repeat=2):
        assert one == two or not (needs(one, two) and needs(two, one))
    for one, two, three in product(values, repeat=3):
        if needs(one, two) and needs(two, three):
            assert needs(one, three)
