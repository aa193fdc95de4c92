"""What holds for every lever."""

from itertools import product
from pathlib import Path

import pytest

import autotune.space.settings
from autotune.space.settings import LEVERS, Lever
from tests.makers import cpu, gpu, workload

EVERY = pytest.mark.parametrize("lever", LEVERS.values(), ids=list(LEVERS))


@EVERY
def test_a_lever_stands_in_the_file_of_its_name(lever: Lever) -> None:
    folder = Path(autotune.space.settings.__file__).parent
    assert (folder / f"{lever.name}.py").is_file()
    assert LEVERS[lever.name] is lever


def test_every_file_is_a_lever_and_every_lever_has_its_test() -> None:
    folder = Path(autotune.space.settings.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__", "setting"} == set(LEVERS)
    assert {f"test_{name}.py" for name in LEVERS} <= {path.name for path in Path(__file__).parent.iterdir()}


@EVERY
def test_its_summary_is_one_sentence(lever: Lever) -> None:
    assert lever.summary[0].isupper()
    assert lever.summary.endswith(".")
    assert ". " not in lever.summary


@EVERY
def test_it_says_what_it_changes(lever: Lever) -> None:
    assert lever.changes
    assert lever.changes <= {"speed", "memory", "numerics"}


@EVERY
def test_its_values_are_read_as_they_are_written(lever: Lever) -> None:
    for value in lever.values:
        assert lever.read(str(value)) == value
        assert lever.read(value) == value
        assert type(lever.read(str(value))) is type(value)


@EVERY
@pytest.mark.parametrize("text", ["", "nonsense", "off", [], 1.5])
def test_what_is_no_value_is_refused(lever: Lever, text: object) -> None:
    with pytest.raises(ValueError, match=r"is (no|neither)"):
        lever.read(text)


@EVERY
def test_a_value_means_itself_once_applied(lever: Lever) -> None:
    for environment in (cpu(), gpu()):
        for value in lever.values or (1, 8):
            settings = lever.apply(value, environment)
            alone = settings.processes < 2  # what a launcher is told stands in no field
            if alone and settings.training_arguments and lever.unavailable(value, environment, workload()) is None:
                assert lever.own(settings.training_arguments, environment, workload()) == value


@EVERY
def test_a_value_sets_something_unless_it_is_none(lever: Lever) -> None:
    for value in lever.values or (1, 8):
        settings = lever.apply(value, gpu())
        made = (
            settings.training_arguments,
            settings.model_arguments,
            settings.environment,
            settings.host,
            settings.processes,
            settings.data_arguments,
            settings.adapter,
            settings.switches,
        )
        assert any(made) or value in ("none", "auto")


@EVERY
def test_what_it_needs_is_a_lever_that_needs_none_and_comes_before_it(lever: Lever) -> None:
    if lever.needs is not None:
        other = LEVERS[lever.needs[0]]
        assert other.needs is None
        assert list(LEVERS).index(other.name) < list(LEVERS).index(lever.name)
        assert {lever.needs[1](value) for value in other.values} == {True, False}


@EVERY
def test_its_default_has_a_meaning_and_can_be_had_on_a_card(lever: Lever) -> None:
    own = lever.own({}, gpu(), workload())
    assert lever.read(str(own)) == own
    assert lever.unavailable(own, gpu(), workload()) is None


@EVERY
def test_hungrier_is_a_partial_order(lever: Lever) -> None:
    values = lever.values or (1, 2, 4, 8)
    for one in values:
        assert lever.hungrier(one, one)
    for one, two in product(values, repeat=2):
        assert one == two or not (lever.hungrier(one, two) and lever.hungrier(two, one))
    for one, two, three in product(values, repeat=3):
        if lever.hungrier(one, two) and lever.hungrier(two, three):
            assert lever.hungrier(one, three)


@EVERY
def test_the_values_of_an_ordered_lever_are_numbers_that_ascend(lever: Lever) -> None:
    if lever.ordered:
        assert all(isinstance(value, int) for value in lever.values)
        assert list(lever.values) == sorted(lever.values)  # type: ignore[type-var]


@EVERY
def test_no_value_is_called_off(lever: Lever) -> None:
    assert "off" not in [str(value) for value in lever.values]
