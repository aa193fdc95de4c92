"""The tree of errors."""

import pickle

import pytest

import autotune
from autotune.core import errors
from autotune.core.errors import AutotuneError, did_you_mean

KINDS = {var.__name__: var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, Exception)}
EVERY = [kind for kind in KINDS.values() if issubclass(kind, AutotuneError)]


def test_all_errors_and_warnings_are_public_under_one_name() -> None:
    public = {name: var for name, var in vars(autotune.errors).items() if isinstance(var, type)}
    assert public == KINDS
    assert {kind.__module__ for kind in KINDS.values()} == {"autotune.errors"}


@pytest.mark.parametrize("kind", EVERY)
def test_the_drawing_shows_every_error_with_its_exit_code(kind: type[AutotuneError]) -> None:
    line = next(line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line.split()[:3])
    assert f" {kind.exit_code} " in line


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_reads_as_message_then_advice_and_travels_between_processes(kind: type[AutotuneError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It broke.", "Fix it.")))
    assert type(error) is kind
    assert str(error) == "It broke. Fix it."
    assert str(kind("It broke.")) == "It broke."


def test_an_error_about_an_option_begins_with_it() -> None:
    error = pickle.loads(pickle.dumps(AutotuneError("'lots' is not a size.", "Write it as 24GiB.", "memory_limit")))
    assert str(error) == "memory_limit: 'lots' is not a size. Write it as 24GiB."
    assert error.message_of("--memory-limit") == "--memory-limit: 'lots' is not a size."


def test_advice_names_the_nearest_word_and_all_there_are() -> None:
    assert (
        did_you_mean("precison", ["precision", "workers"])
        == "Did you mean 'precision'? Choose one of: precision, workers."
    )
    assert did_you_mean("zzz", ["precision", "workers"]) == "Choose one of: precision, workers."
    assert did_you_mean(5, []) == "Nothing of that kind is known."
    assert did_you_mean("word7", [f"word{number}" for number in range(500)]) == "Did you mean 'word7'?"
    assert did_you_mean("b", ["a", "b", "a"]).endswith("Choose one of: a, b.")
