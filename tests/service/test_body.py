"""What a request may say: fields and limits, names of models and data, spaces, training arguments."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.core.errors import InvalidRequest
from autotune.core.request import OPTIONS
from autotune.service.accounts import Caller
from autotune.service.body import (
    MOST_DEPTH,
    TRAINING_ARGS,
    SearchBody,
    checked,
    job_of,
    parse_body,
)
from autotune.service.records import Forbidden
from autotune.service.roots import Roots
from autotune.space.settings import SETTINGS
from autotune.space.setup import PRIVATE
from tests.service.application import CONFIG, SMALL, touched
from tests.service.test_roots import spellings

ANNA, ADMIN = Caller("anna", "submitter", "1"), Caller("root", "admin", "2")


def body(**fields: Any) -> SearchBody:
    return SearchBody.model_validate(SMALL | fields)


# JSON -----------------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_json_is_read_to_its_greatest_depth() -> None:
    assert parse_body(nested(MOST_DEPTH)) is not None
    with pytest.raises(ValueError, match="32 levels"):
        parse_body(nested(MOST_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "nul", "{'a': 1}", "[1,]"),
        *("NaN", "[Infinity]", '{"a": -Infinity}', "1e999", '"\\u0000"', '{"\\u0000": 1}', '"\\ud800"', '["\\udfff"]'),
        "1" * 5000,
        nested(100_000).decode(),
    ],
)
def test_what_is_no_json_or_cannot_be_stored_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_body(text.encode())


# Fields ---------------------------------------------------------------------------------------------------------


def test_every_option_of_a_search_is_a_field_but_those_that_name_places_or_trust_code() -> None:
    of_the_server = {"name", "priority", "card", "model", "global_batch_size"}
    without = {name for name, option in OPTIONS.items() if option.local}
    assert {"trust_remote_code", "output_dir", "study_name", "report_to", "fresh", "executor"} <= without
    assert set(SearchBody.model_fields) == {*OPTIONS} - without | of_the_server


def test_misspelt_fields_are_named_with_the_nearest_and_all_that_is_wrong_at_once() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'n_trials'") as error:
        body(n_trails=3, foo=1, seed=-1)
    assert [entry["loc"] for entry in error.value.errors()] == [("seed",), ("n_trails",), ("foo",)]
    assert len(str(error.value)) < 1000, "the other names are not listed"


@pytest.mark.parametrize("letter", ["\n", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028", "\u2029", "\ufeff"])
def test_a_name_holds_no_invisible_character(letter: str) -> None:
    with pytest.raises(ValidationError, match="invisible"):
        body(name=f"a{letter}b")


# Settings ---------------------------------------------------------------------------------------------------------

PLACES = ("/etc/cron.d", "../x", "~/x", "3_offload_nvme:/etc/cron.d", "3_offload_nvme:/", "a\\b")


@pytest.mark.parametrize("name", SETTINGS)
def test_no_value_of_a_setting_names_a_place(name: str, roots: Roots) -> None:
    for place in (*PLACES, *(f"{value}:/etc" for value in SETTINGS[name].values)):
        for fields in (
            {"fix": {name: place}},
            {"fix": [f"{name}={place}"]},
            {"only": {name: [place]}},
            {"only": [f"{name}={place},/tmp"]},
            {"space": json.dumps({"parameters": {name: [place]}})},
        ):
            with pytest.raises((InvalidRequest, ValidationError)):
                checked(body(**fields), roots, ANNA)


@pytest.mark.parametrize("name", [name for name in SETTINGS if any(type(x) is int for x in SETTINGS[name].values)])
@pytest.mark.parametrize("number", [10**6, 10**4000, -1])
def test_a_setting_of_numbers_has_a_limit(name: str, number: int, roots: Roots) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        SETTINGS[name].read(number)
    for fields in (
        {"fix": {name: number}},
        {"only": {name: [number]}},
        {"space": f"parameters: {{{name}: [{number}]}}"},
    ):
        with pytest.raises(InvalidRequest):
            checked(body(**fields), roots, ANNA)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_trials": 201},
        {"n_trials": "20"},
        {"global_batch_size": 0},
        {"global_batch_size": 2**20 + 1},
        {"task": "speech"},
        {"device": "cuda:1; rm"},
        {"headroom": float("nan")},
        {"fix": {"precision": None}},
        {"only": {"precision": {"a": 1}}},
        {"args": {"optim": [1]}},
        {"args": {"lr_scheduler_kwargs": {"a": {"b": 1}}}},
        {"name": "a" * 121},
        {"priority": 101},
        {"seed": 2**31},
    ],
)
def test_values_out_of_their_limits_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        body(**fields)


def test_settings_are_taken_as_the_command_line_has_them_too(roots: Roots) -> None:
    words = {"fix": ["precision=fp32"], "only": ["workers=0,2"]}
    assert checked(body(**words), roots, ANNA) == SMALL | words
    with pytest.raises(InvalidRequest, match="presicion"):
        checked(body(fix=["presicion=fp32"]), roots, ANNA)


def test_a_request_that_was_checked_is_checked_again_to_the_same(roots: Roots) -> None:
    request = checked(body(model="team:bert", args={"learning_rate": 1e-4}, only={"workers": [0, 2]}), roots, ANNA)
    assert checked(SearchBody.model_validate(request), roots, ANNA) == request


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"timeout": "25h"}, "timeout"),
        ({"probe_timeout": "2d"}, "probe_timeout"),
        ({"device": "cuda"}, "device"),
        ({"device": "cuda:1"}, "device"),
        ({"args": {"output_dir": "x"}}, "args"),
        ({"args": {"dataloader_num_workers": 257}}, "args"),
        ({"args": {"dataloader_num_workers": 150}}, "args"),
        ({"fix": {"workers": 150}}, "fix"),
        ({"only": {"workers": [0, 150]}}, "only"),
        ({"space": "description: many\nparameters:\n  workers: [0, 150]\n"}, "space"),
        ({"args": {"optim_args": "/etc/passwd"}}, "args"),
        ({"args": {"lr_scheduler_kwargs": {"a": "~/x"}}}, "args"),
        ({"model": "nothing"}, "model"),
        ({"dataset": "nothing"}, "dataset"),
        ({"tokenizer": "nothing", "dataset": "team:texts"}, "tokenizer"),
        ({"space": "/etc/passwd"}, "space"),
        ({"space": "a: &a [1]\nparameters: {workers: [*a]}"}, "space"),
        ({"space": "# " + "ä" * 8192}, "space"),
        ({"space": "parameters:\n" + "[" * 10_000}, "space"),
        ({"space": "parameters: !!python/object/apply:os.system [ls]"}, "space"),
    ],
)
def test_a_field_that_no_search_could_have_is_pointed_at(fields: dict[str, Any], option: str, roots: Roots) -> None:
    with pytest.raises(InvalidRequest) as error:
        checked(body(**fields), roots, ANNA, {"cpu": "a plain processor"})
    assert error.value.option == option


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"fix": {"precision": "bf17"}}, "bf17"),
        ({"fix": {"workers": 0}, "only": {"workers": [0]}}, "workers"),
        ({"timeout": "soon"}, "soon"),
        ({"tokenizer": "team:bert"}, "dataset"),
        ({"args": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}}, "3 x 3"),
        ({"require_parity": True, "allow_loss_difference": True}, "opposite"),
    ],
)
def test_what_the_command_line_refuses_is_refused(fields: dict[str, Any], word: str, roots: Roots) -> None:
    with pytest.raises(InvalidRequest, match=word):
        checked(body(**fields), roots, ANNA)


def test_admins_may_go_first(roots: Roots) -> None:
    assert checked(body(priority=100), roots, ADMIN)["priority"] == 100
    with pytest.raises(Forbidden, match="Only admins"):
        checked(body(priority=1), roots, ANNA)


def test_no_training_argument_is_allowed_that_stays_private_or_names_a_place() -> None:
    assert not TRAINING_ARGS & {*PRIVATE, "deepspeed", "fsdp_config", "accelerator_config", "report_to", "debug"}
    assert not [name for name in TRAINING_ARGS if name.startswith(("hub_", "push_to", "trackio", "logging_dir"))]


# Spaces -----------------------------------------------------------------------------------------------------------


def test_an_inline_space_is_written_into_the_folder_of_the_search(roots: Roots, tmp_path: Path) -> None:
    text = "parameters:\n  precision: [fp32, bf16]\n"
    request = checked(body(space=text), roots, ANNA)
    assert request["space"] == text
    options = job_of(request, roots, tmp_path, "cpu")
    assert options["space"] == str(tmp_path / "space.yaml")
    assert Path(options["space"]).read_text() == text


def test_a_wrong_setting_in_an_inline_space_is_named_with_its_line(roots: Roots) -> None:
    with pytest.raises(InvalidRequest, match=r"^space: line 2: .*presicion"):
        checked(body(space="parameters:\n  presicion: [fp32]\n"), roots, ANNA)


# Names ------------------------------------------------------------------------------------------------------------


def test_names_below_the_roots_become_paths_when_the_search_starts(roots: Roots, tmp_path: Path) -> None:
    request = checked(body(model="team:bert", dataset="team:texts/corpus.jsonl", tokenizer="team:bert"), roots, ANNA)
    assert str(tmp_path) not in json.dumps(request)
    options = job_of(request | {"name": "n", "priority": 1}, roots, tmp_path / "here", "cuda:1")
    assert options == SMALL | {
        "model": str(tmp_path / "models" / "bert"),
        "dataset": str(tmp_path / "data" / "texts" / "corpus.jsonl"),
        "tokenizer": str(tmp_path / "models" / "bert"),
        "device": "cuda:1",
        "output_dir": str(tmp_path / "here"),
        "study_name": "n-here",
        "trust_remote_code": False,
    }


@pytest.mark.parametrize(
    ("fields", "study"),
    [
        ({"name": "Ann's run: nº 2"}, "Ann-s-run-n-2-1a2b3c4d"),
        ({"name": "../.."}, "search-1a2b3c4d"),
        ({"name": "x" * 120}, f"{'x' * 80}-1a2b3c4d"),
        ({"model": "team:bert"}, "bert-1a2b3c4d"),
    ],
)
def test_the_study_is_called_as_its_search(fields: dict[str, str], study: str, roots: Roots, tmp_path: Path) -> None:
    request = checked(body(**fields), roots, ANNA)
    assert job_of(request, roots, tmp_path / f"{0:024}1a2b3c4d", "cpu")["study_name"] == study


def test_messages_have_the_names_and_not_the_paths(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "models" / "bert" / "config.json").write_text("{}")
    (tmp_path / "data" / "texts" / "corpus.jsonl").write_text("")
    for fields, message in [
        ({"model": "team:bert"}, "team:bert"),
        ({"dataset": "team:texts/corpus.jsonl"}, "corpus.jsonl"),
    ]:
        with pytest.raises(InvalidRequest, match=message) as error:
            checked(body(**fields), roots, ANNA)
        assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("name", ["data.pkl", "data.pt", "data.bin", "data.npy", "data.py"])
def test_data_of_other_kinds_are_refused(name: str, roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "data" / name).write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="ending"):
        checked(body(dataset=f"team:{name}"), roots, ANNA)


def test_a_folder_that_became_a_link_since_it_was_checked_is_refused_at_the_start(roots: Roots, tmp_path: Path) -> None:
    request = checked(body(model="team:bert"), roots, ANNA)
    (tmp_path / "models" / "bert").rename(tmp_path / "models" / "old")
    (tmp_path / "models" / "bert").symlink_to(tmp_path / "canary")
    with pytest.raises(InvalidRequest, match="no model 'team:bert'"):
        job_of(request, roots, tmp_path, "cpu")


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_name_has_a_file_outside_of_the_roots_opened(every: int, roots: Roots, tmp_path: Path) -> None:
    with touched() as events:
        for name in [*spellings(tmp_path / "canary.json"), *spellings(tmp_path / "canary")][::every]:
            for fields in ({"model": name}, {"model": "team:bert", "dataset": name}):
                with pytest.raises((InvalidRequest, ValidationError)):
                    checked(body(**fields), roots, ANNA)
    assert [event for event in events if str(tmp_path / "canary") in event or "passwd" in event] == []
    assert [event for event in events if str(tmp_path / "models") in event], "the check sees what is opened"
    assert [event for event in events if event.startswith("socket.connect")] == []


def test_a_file_of_the_search_is_not_a_model_of_the_hub(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "runner.log").write_text(json.dumps(CONFIG))
    with pytest.raises(InvalidRequest, match="a file of the search"):
        job_of(SMALL | {"model": "runner.log"}, Roots(hub="online", hub_patterns=["*"]), tmp_path, "cpu")
