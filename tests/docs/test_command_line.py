"""What the page of the command line says of Python is so."""

import inspect
from typing import Any

import pytest

import autotune
from autotune.core.request import OPTIONS as REQUEST
from autotune.core.request import tuning_request
from tests.docs.pages import docs_module

FUNCTIONS = ("search", "estimate", "compare", "guide", "verify", "explain")
OPTIONS_ALONE = {"as_json", "quiet", "server", "detach"}
BY_FOLDER = {"verify", "explain"}
PYTHON_ALONE = {"watch", "probes", "started", "train_dataset", "data_collator", "processing_class", "trainer_class"}
"""What is an object, or a reading of this process's clock."""


def parameters(command: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(autotune, command)).parameters)


def options(command: str) -> dict[str, Any]:
    return {param.name: param for param in docs_module("generated").commands()[command].params}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_every_option_is_an_argument_that_a_signature_shows(command: str) -> None:
    arguments = parameters(command)
    assert not [
        argument for argument in arguments.values() if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
    ]
    assert not [name for name, argument in arguments.items() if argument.annotation is argument.empty]
    if command in BY_FOLDER:
        assert "folder" in arguments
        arguments |= {"study": arguments["folder"], "output_dir": arguments["folder"]}
    assert options(command).keys() - OPTIONS_ALONE <= arguments.keys()


@pytest.mark.parametrize("command", ["search", "guide"])
def test_every_argument_that_is_no_object_is_an_option(command: str) -> None:
    assert parameters(command).keys() - PYTHON_ALONE <= options(command).keys()


@pytest.mark.parametrize("command", ["search", "estimate", "guide"])
def test_defaults_mean_the_same_in_both(command: str) -> None:
    typed = {name: option.default for name, option in options(command).items()}
    named = {name: parameter.default for name, parameter in parameters(command).items()}
    asked = [name for name in REQUEST if name in typed and name in named]
    assert len(asked) > 5
    of_command, of_function = ({name: defaults[name] for name in asked} for defaults in (typed, named))
    assert tuning_request("bert-mini", 8, **of_command) == tuning_request("bert-mini", 8, **of_function)


def test_tune_takes_what_search_does_but_for_what_a_trainer_brings() -> None:
    tune, search = (inspect.signature(item).parameters for item in (autotune.tune, autotune.search))
    brought = {"model", "args", "train_dataset", "data_collator", "processing_class", "trainer_class"}
    brought |= {"started", "dataset", "dataset_split", "text_column", "label_column", "tokenizer"}
    assert tune.keys() - {"trainer", "args"} == search.keys() - brought
    differing = {name for name in tune.keys() & search.keys() if tune[name] != search[name]}
    assert differing == {"global_batch_size", "device", "args"}, "the Trainer says these"


def test_every_argument_of_a_search_is_described() -> None:
    assert not [name for name in parameters("search") if f" {name}: " not in (autotune.search.__doc__ or "")]
