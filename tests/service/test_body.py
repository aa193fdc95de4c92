"""What a request may say: fields and limits, names of models and data, spaces, training arguments."""

import contextlib
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from autotune.core.errors import InvalidRequest
from autotune.core.request import OPTIONS
from autotune.service.accounts import Caller
from autotune.service.body import (
    MOST_DEPTH,
    TRAINING_ARGS,
    InvalidField,
    InvalidFields,
    Roots,
    SearchBody,
    all_errors,
    check_nodes,
    checked,
    job_of,
    parse_body,
)
from autotune.space.settings import SETTINGS
from autotune.space.setup import PRIVATE
from autotune.workload.model.builtin import BUILT_IN
from tests.service.application import SMALL, touched

ANNA, ADMIN = Caller("anna", "submitter", "1"), Caller("root", "admin", "2")
CANARY = "canary-5f2d"
CONFIG = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """Two roots with a model and data, and files beside them that nobody may read."""
    model = tmp_path / "models" / "bert"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models" / "small.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models" / ".hidden").mkdir()
    (tmp_path / "models" / ".hidden" / "config.json").write_text(json.dumps(CONFIG))
    data = tmp_path / "data" / "texts"
    data.mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "canary.json").write_text(json.dumps(CONFIG | {"name": CANARY}))
    (tmp_path / "canary.jsonl").write_text(json.dumps({"text": CANARY}))
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "config.json").write_text(json.dumps(CONFIG | {"name": CANARY}))
    return Roots({"team": tmp_path / "models"}, {"team": tmp_path / "data"})


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


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="decode"):
        parse_body(b'"\xff"')


# Fields ---------------------------------------------------------------------------------------------------------


def test_every_option_of_a_search_is_a_field_but_those_that_name_places_or_trust_code() -> None:
    of_the_server = {"name", "priority", "card", "model", "global_batch_size"}
    without = {name for name, option in OPTIONS.items() if option.local}
    assert {"trust_remote_code", "output_dir", "study_name", "report_to", "fresh", "executor"} <= without
    assert set(SearchBody.model_fields) == {*OPTIONS} - without | of_the_server


@pytest.mark.parametrize(
    "name", ["trust_remote_code", "output_dir", "study_name", "report_to", "fresh", "watch", "model_init"]
)
def test_other_fields_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match=f"There is no field '{name}'"):
        body(**{name: True})


def test_misspelt_fields_are_named_with_the_nearest_and_all_that_is_wrong_at_once() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'n_trials'") as error:
        body(n_trails=3, foo=1, seed=-1)
    assert [entry["loc"] for entry in error.value.errors()] == [("seed",), ("n_trails",), ("foo",)]
    assert len(str(error.value)) < 1000, "the other names are not listed"


@pytest.mark.parametrize("letter", ["\n", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028", "\u2029", "\ufeff"])
def test_a_name_holds_no_invisible_character(letter: str) -> None:
    with pytest.raises(ValidationError, match="invisible"):
        body(name=f"a{letter}b")


def test_all_that_is_wrong_is_pointed_at_in_one_pass(roots: Roots) -> None:
    wrong = {
        "model": "bert-min",
        "memory_limit": "lots",
        "fix": {"precison": "bf16", "workers": 10**6},
        "timeout": "25h",
    }
    with pytest.raises(InvalidFields) as error:
        checked(body(**wrong), roots, ANNA)
    pointers = {"/model", "/memory_limit", "/fix/precison", "/fix/workers", "/timeout"}
    assert {field.pointer for field in error.value.errors} == pointers
    found, problems = all_errors({"foo": 1, "global_batch_size": "x", **wrong}, roots, ANNA, {"cpu": "a processor"})
    assert found is None
    assert set(problems) == {"/foo", "/global_batch_size", "/model", "/memory_limit", "/timeout"}
    assert all_errors(SMALL, roots, ANNA, {"cpu": "a processor"}) == (body(), {})


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
        {"n_trials": True},
        {"global_batch_size": 0},
        {"global_batch_size": 2**20 + 1},
        {"global_batch_size": 8.0},
        {"task": "speech"},
        {"sampler": "magic"},
        {"objective": "money"},
        {"device": "tpu"},
        {"device": "cuda:1; rm"},
        {"headroom": float("nan")},
        {"fix": {"precision": None}},
        {"fix": {"precision": float("inf")}},
        {"fix": "precision=bf16"},
        {"fix": [1]},
        {"only": {"precision": {"a": 1}}},
        {"args": {"optim": [1]}},
        {"args": {"lr_scheduler_kwargs": {"a": {"b": 1}}}},
        {"name": "a" * 121},
        {"name": "two\nlines"},
        {"priority": 101},
        {"model": ""},
        {"model": "\0"},
        {"seed": -1},
        {"seed": 2**31},
    ],
)
def test_values_out_of_their_limits_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        body(**fields)


def test_values_at_their_limits_are_taken() -> None:
    assert body(n_trials=200, global_batch_size=2**20, name="ä" * 120, priority=-100, seed=2**31 - 1, device="cuda:12")


def test_a_checked_request_has_what_was_given_and_what_limits_it(roots: Roots) -> None:
    request = checked(body(fix={"precision": "bf16"}, name="mine", priority=-3), roots, ANNA)
    assert request == SMALL | {"fix": {"precision": "bf16"}, "name": "mine", "priority": -3}
    assert json.loads(json.dumps(request)) == request


def test_settings_are_taken_as_the_command_line_has_them_too(roots: Roots) -> None:
    words = {"fix": ["precision=fp32"], "only": ["workers=0,2"]}
    assert checked(body(**words), roots, ANNA) == SMALL | words
    with pytest.raises(InvalidRequest, match="presicion"):
        checked(body(fix=["presicion=fp32"]), roots, ANNA)


def test_a_request_that_was_checked_is_checked_again_to_the_same(roots: Roots) -> None:
    request = checked(body(model="team:bert", args={"learning_rate": 1e-4}, only={"workers": [0, 2]}), roots, ANNA)
    assert checked(SearchBody.model_validate(request), roots, ANNA) == request


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"timeout": "25h"}, "/timeout"),
        ({"timeout": 86_401}, "/timeout"),
        ({"probe_timeout": "2d"}, "/probe_timeout"),
        ({"priority": 1}, "/priority"),
        ({"device": "cuda"}, "/device"),
        ({"device": "cuda:1"}, "/device"),
        ({"args": {"output_dir": "x"}}, "/args/output_dir"),
        ({"args": {"dataloader_num_workers": 257}}, "/args/dataloader_num_workers"),
        ({"args": {"dataloader_num_workers": "many"}}, "/args/dataloader_num_workers"),
        ({"args": {"dataloader_num_workers": 150}}, "/args/dataloader_num_workers"),
        ({"fix": {"workers": 150}}, "/fix/workers"),
        ({"only": {"workers": [0, 150]}}, "/only/workers"),
        ({"space": "description: many\nparameters:\n  workers: [0, 150]\n"}, "/space"),
        ({"args": {"optim_args": "/etc/passwd"}}, "/args/optim_args"),
        ({"args": {"lr_scheduler_kwargs": '{"a": 1}'}}, "/args/lr_scheduler_kwargs"),
        ({"args": {"lr_scheduler_kwargs": {"a": "~/x"}}}, "/args/lr_scheduler_kwargs"),
        ({"args": {"label_names": ["..\\x"]}}, "/args/label_names"),
        ({"model": "nothing"}, "/model"),
        ({"dataset": "nothing"}, "/dataset"),
        ({"tokenizer": "nothing", "dataset": "team:texts"}, "/tokenizer"),
        ({"space": "defualt"}, "/space"),
        ({"space": "/etc/passwd"}, "/space"),
        ({"space": "a: &a [1]\nparameters: {workers: [*a]}"}, "/space"),
        ({"space": "parameters: {workers: ["}, "/space"),
        ({"space": "# " + "ä" * 8192}, "/space"),
        ({"space": "parameters:\n" + "[" * 10_000}, "/space"),
        ({"space": "parameters: !!python/object/apply:os.system [ls]"}, "/space"),
    ],
)
def test_a_field_that_no_search_could_have_is_pointed_at(fields: dict[str, Any], pointer: str, roots: Roots) -> None:
    with pytest.raises(InvalidField) as error:
        checked(body(**fields), roots, ANNA, {"cpu": "a plain processor"})
    assert error.value.pointer == pointer


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"fix": {"presicion": "bf16"}}, "presicion"),
        ({"fix": {"precision": "bf17"}}, "bf17"),
        ({"fix": {"workers": 0}, "only": {"workers": [0]}}, "workers"),
        ({"memory_limit": "much"}, "much"),
        ({"timeout": "soon"}, "soon"),
        ({"tokenizer": "team:bert"}, "dataset"),
        ({"args": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}}, "3 x 3"),
        ({"require_parity": True, "allow_loss_difference": True}, "opposites"),
    ],
)
def test_what_the_command_line_refuses_is_refused(fields: dict[str, Any], word: str, roots: Roots) -> None:
    with pytest.raises(InvalidRequest, match=word):
        checked(body(**fields), roots, ANNA)


def test_admins_may_go_first(roots: Roots) -> None:
    assert checked(body(priority=100), roots, ADMIN)["priority"] == 100


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
    with pytest.raises(InvalidField, match=r"^space:2: .*presicion"):
        checked(body(space="parameters:\n  presicion: [fp32]\n"), roots, ANNA)


def test_a_shipped_space_is_taken_by_its_name(roots: Roots, tmp_path: Path) -> None:
    assert job_of(checked(body(space="quick"), roots, ANNA), roots, tmp_path, "cpu")["space"] == "quick"


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
        ({}, "bert-mini-1a2b3c4d"),
        ({"name": "Ann's run: nº 2"}, "Ann-s-run-n-2-1a2b3c4d"),
        ({"name": "../.."}, "search-1a2b3c4d"),
        ({"name": "x" * 120}, f"{'x' * 80}-1a2b3c4d"),
        ({"model": "team:bert"}, "bert-1a2b3c4d"),
    ],
)
def test_the_study_is_called_as_its_search(fields: dict[str, str], study: str, roots: Roots, tmp_path: Path) -> None:
    request = checked(body(**fields), roots, ANNA)
    assert job_of(request, roots, tmp_path / f"{0:024}1a2b3c4d", "cpu")["study_name"] == study


def test_the_schema_says_which_names_may_be_opened(roots: Roots) -> None:
    properties = SearchBody.model_json_schema()["properties"]
    pattern = properties["model"]["pattern"]
    taken = (*BUILT_IN, *roots.names("models"), *roots.names("data"), "org/model.v2", "org/data:subset")
    assert [name for name in taken if not re.search(pattern, name)] == []
    assert [name for name in ("../x", "/etc", "~/m", "a//b", "team:", "team:/x") if re.search(pattern, name)] == []
    assert properties["dataset"]["anyOf"][0]["pattern"] == properties["tokenizer"]["anyOf"][0]["pattern"] == pattern


def test_config_files_and_folders_of_data_can_be_named(roots: Roots) -> None:
    assert checked(body(model="team:small.json", dataset="team:texts"), roots, ANNA)


def test_what_is_below_the_roots_is_listed_by_the_names_that_are_taken(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "models" / "out").symlink_to(tmp_path / "canary")
    (tmp_path / "models" / "no name.txt").touch()
    assert roots.names("models") == ["team:small.json", "team:bert"]
    assert roots.names("data") == ["team:texts", "team:texts/corpus.jsonl"]


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


def spellings(outside: Path) -> list[str]:
    """Names that lead, or could be read to lead, to these files outside of the root."""
    up, file = "..", outside.name
    paths = [
        *(
            f"{up}/{file}",
            f"{up}/{up}/{file}",
            f"bert/{up}/{up}/{file}",
            f"./{up}/{file}",
            f"{up}//{file}",
            f"bert/./{up}/{up}/{file}",
        ),
        *(
            str(outside),
            f"/{outside}",
            f"//{outside}",
            f"~/{file}",
            f"~root/{file}",
            f"{up}\\{file}",
            f"bert\\{up}\\{up}\\{file}",
        ),
        *("/etc/passwd", "../../../../../../etc/passwd", "/proc/self/environ", "/proc/self/fd/0", "/dev/stdin", "."),
        *(f".hidden/{up}/{up}/{file}", ".hidden", "bert/", "/bert", "bert//config.json", "bert/.", "bert/.."),
        *(
            f"C:\\{file}",
            f"\\\\host\\{file}",
            f"{up}/{file}#",
            f"{up}/{file}?x",
            f"#/{up}/{file}",
            f"bert#/{up}/{up}/{file}",
        ),
        *(
            f"file:{outside}",
            f"file://{outside}",
            f"file://localhost{outside}",
            f"http://127.0.0.1/{file}",
            f"hf://{file}",
            "s3://b/k",
        ),
    ]
    unicode = {
        "two dot leader": "\u2025",
        "fullwidth": "\uff0e\uff0e",
        "small": "\ufe52\ufe52",
        "leader": "\u2024\u2024",
    }
    paths += [f"{dots}/{file}" for dots in unicode.values()]
    paths += [
        f"{up}{slash}{file}"
        for slash in ("\u2215", "\u2044", "\uff0f", "\u29f8", "%c0%af", "%5c", "%255c", "\t/", "\n/", "\0/")
    ]
    encoded = [quote(path, safe="") for path in paths[:13]]
    paths += encoded + [quote(path, safe="") for path in encoded] + [path.replace("..", "%2e%2e") for path in paths[:6]]
    paths += [f"{path}{end}" for path in paths[:6] for end in ("\0", "\0.json", "%00", "%00.json", " ", ".", "/", ";x")]
    return [name for path in paths for name in (f"team:{path}", path)]


@pytest.mark.parametrize("kind", ["model", "dataset", "tokenizer"])
def test_no_spelling_of_a_path_leads_out_of_a_root(kind: str, roots: Roots, tmp_path: Path) -> None:
    outside = tmp_path / ("canary.jsonl" if kind == "dataset" else "canary.json")
    names = spellings(outside) + (spellings(tmp_path / "canary") if kind != "dataset" else [])
    assert len(set(names)) >= 200
    for name in names:
        with pytest.raises(InvalidRequest) as error:
            roots.resolved(kind, name)
        assert CANARY not in str(error.value)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_name_has_a_file_outside_of_the_roots_opened(every: int, roots: Roots, tmp_path: Path) -> None:
    with touched() as events:
        for name in [*spellings(tmp_path / "canary.json"), *spellings(tmp_path / "canary")][::every]:
            for fields in ({"model": name}, {"model": "team:bert", "dataset": name}):
                with pytest.raises((InvalidRequest, ValidationError)):
                    checked(body(**fields), roots, ANNA)
    assert [event for event in events if str(tmp_path / "canary") in event or "passwd" in event] == []
    assert [event for event in events if str(tmp_path / "models") in event], "the check sees what is opened"


@pytest.mark.parametrize("place", ["bert2", "bert/config.json", "bert/vocab.txt", "bert/more"])
def test_a_link_out_of_the_root_is_not_followed(place: str, roots: Roots, tmp_path: Path) -> None:
    link = tmp_path / "models" / place
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / ("canary" if "." not in place else "canary.json"))
    with pytest.raises(InvalidRequest, match="on this server"):
        roots.resolved("model", f"team:{place.partition('/')[0]}")


def test_a_link_within_the_root_is_followed(roots: Roots, tmp_path: Path) -> None:
    """As the hub's cache has its files."""
    (tmp_path / "models" / "blob").write_text(json.dumps(CONFIG))
    (tmp_path / "models" / "bert" / "config.json").unlink()
    (tmp_path / "models" / "bert" / "config.json").symlink_to("../blob")
    (tmp_path / "models" / "same").symlink_to("bert")
    assert roots.resolved("model", "team:same") == str(tmp_path / "models" / "bert")


def test_a_folder_that_became_a_link_since_it_was_checked_is_refused_at_the_start(roots: Roots, tmp_path: Path) -> None:
    request = checked(body(model="team:bert"), roots, ANNA)
    (tmp_path / "models" / "bert").rename(tmp_path / "models" / "old")
    (tmp_path / "models" / "bert").symlink_to(tmp_path / "canary")
    with pytest.raises(InvalidField, match="no model 'team:bert'"):
        job_of(request, roots, tmp_path, "cpu")


def test_what_is_no_file_is_not_opened(roots: Roots, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "models" / "pipe")
    os.mkfifo(tmp_path / "data" / "pipe.jsonl")
    for what, name in (("model", "team:pipe"), ("dataset", "team:pipe.jsonl")):
        with pytest.raises(InvalidRequest, match="on this server"):
            roots.resolved(what, name)


def test_a_file_that_is_too_long_for_a_config_is_not_read(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "models" / "long.json").write_text(" " * (2**20 + 1))
    with pytest.raises(InvalidRequest, match="1 MiB"):
        roots.resolved("model", "team:long.json")


# Code -------------------------------------------------------------------------------------------------------------


class Canary:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own_is_refused(file: str, roots: Roots, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "bert"
    (folder / file).write_text(json.dumps(CONFIG | {"auto_map": {"AutoConfig": "code.Config"}}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InvalidField, match="Python code of its own"):
        checked(body(model="team:bert"), roots, ANNA)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused_unless_safetensors_are_read_in_their_place(
    file: str, roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "bert"
    (folder / file).write_bytes(pickle.dumps(Canary()))
    with pytest.raises(InvalidField, match="pickled"):
        checked(body(model="team:bert"), roots, ANNA)
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    assert checked(body(model="team:bert"), roots, ANNA)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("index", "is_safe"),
    [
        ({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}, True),
        ({"weight_map": {"a": "model-1.safetensors", "b": "pytorch_model-2.bin"}}, False),
        ({"weight_map": {"a": "../../secret.safetensors"}}, False),
        ({"weight_map": {"a": "/etc/secret.safetensors"}}, False),
        ({"weight_map": ["a.safetensors"]}, False),
        ([], False),
    ],
)
def test_an_index_names_safetensors_alone(index: Any, is_safe: bool, roots: Roots, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "bert"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for shard in ("model-1.safetensors", "model-2.safetensors"):
        save_file({"weight": torch.zeros(1)}, folder / shard)
    if is_safe:
        assert checked(body(model="team:bert"), roots, ANNA)
    else:
        with pytest.raises(InvalidField, match=r"pickled.*\(model.safetensors.index.json\)"):
            checked(body(model="team:bert"), roots, ANNA)


TOKENIZER = {"tokenizer_class": "BertTokenizer", "name_or_path": "/home/ann/bert", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [
        ({}, True),
        ({"special_tokens_map_file": "/home/ann/bert/special_tokens_map.json"}, True),  # which nobody opens
        ({"extra_special_tokens": ["<a/>"], "chat_template": "a/b", "vocab_file": None}, True),
        ({"vocab_file": "/etc/passwd"}, False),
        ({"vocab_file": "../canary.json"}, False),
        ({"source_spm": "~/spm"}, False),
        ({"fast_tokenizer_files": ["../tokenizer.1.json"]}, False),
    ],
)
def test_a_tokenizer_names_no_file_outside_of_its_folder(
    more: dict[str, Any], is_plain: bool, roots: Roots, tmp_path: Path
) -> None:
    (tmp_path / "models" / "bert" / "tokenizer_config.json").write_text(json.dumps(TOKENIZER | more))
    for what in ("model", "tokenizer"):
        with contextlib.nullcontext() if is_plain else pytest.raises(InvalidRequest, match="outside of its folder"):
            assert roots.resolved(what, "team:bert") == str(tmp_path / "models" / "bert")


def test_saved_data_name_no_file_outside_of_their_folder(roots: Roots, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "saved" / "train"
    folder.mkdir(parents=True)
    state, splits = folder / "state.json", folder.parent / "dataset_dict.json"
    (folder / "data.arrow").touch()

    def write(file: str, split: str) -> None:
        state.write_text(json.dumps({"_data_files": [{"filename": file}], "_fingerprint": "a/b"}))
        splits.write_text(json.dumps({"splits": [split]}))

    write("data.arrow", "train")
    assert roots.resolved("dataset", "team:saved") == str(folder.parent)
    for file, split in [
        ("../../x/data.arrow", "train"),
        ("/x.arrow", "train"),
        ("data.arrow", "../../x"),
        ("..", "train"),
    ]:
        write(file, split)
        with pytest.raises(InvalidRequest, match="outside of its folder"):
            roots.resolved("dataset", "team:saved")
    for text in ('{"_data_files": [1]}', '{"_data_files": {"filename": "/x"}}', "[1]", '"/x"'):
        state.write_text(text)
        with pytest.raises(InvalidRequest):
            roots.resolved("dataset", "team:saved")


def test_an_adapter_whose_base_model_may_be_anywhere_is_refused(roots: Roots, tmp_path: Path) -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "/etc"}
    (tmp_path / "models" / "bert" / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(InvalidField, match=r"is an adapter.*Name the model that it is for"):
        checked(body(model="team:bert"), roots, ANNA)


@pytest.mark.parametrize("name", ["data.pkl", "data.pt", "data.bin", "data.npy", "data.py"])
def test_data_of_other_kinds_are_refused(name: str, roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "data" / name).write_bytes(pickle.dumps(Canary()))
    with pytest.raises(InvalidRequest, match="ending"):
        checked(body(dataset=f"team:{name}"), roots, ANNA)


# The hub ----------------------------------------------------------------------------------------------------------


def with_hub(roots: Roots, *patterns: str, hub: str = "cached") -> Roots:
    return Roots(roots.models, roots.data, hub, patterns)


def test_hub_ids_are_taken_by_the_patterns_where_the_hub_is_on(roots: Roots) -> None:
    some = with_hub(roots, "google/*", "gpt2", "squad*", hub="online")
    assert some.resolved("model", "google/bert-x") == "google/bert-x"
    assert some.resolved("model", "gpt2") == "gpt2"
    assert some.resolved("dataset", "squad:plain-text") == "squad:plain-text"
    for other in ("meta/x", "google", "gpt2x"):
        with pytest.raises(InvalidRequest, match=r"from the hub\. It takes google/\*, gpt2, squad\*\.$"):
            some.resolved("model", other)
    with pytest.raises(InvalidRequest, match="on this server"):
        with_hub(roots, "*", hub="off").resolved("model", "google/bert-x")


def test_a_root_of_the_hub_has_the_ids_of_its_team_and_no_others(roots: Roots) -> None:
    models, data = {"team": "hf://ann"}, {"team": "hf://datasets/ann", "here": roots.data["team"]}
    some = Roots(models, data, "online")
    assert (some.resolved("model", "team:bert"), some.resolved("tokenizer", "team:bert")) == ("ann/bert", "ann/bert")
    assert (some.resolved("dataset", "team:corpus"), some.resolved("dataset", "here:texts")) == (
        "ann/corpus",
        str(roots.data["team"] / "texts"),
    )
    assert (some.names("models"), some.names("data")) == ([], ["here:texts", "here:texts/corpus.jsonl"])
    others = [
        "ann/bert",
        "eve/bert",
        "team:../eve/bert",
        "team:/etc",
        "team:a/b",
        "team:",
        "hf://ann/bert",
        "s3://ann/bert",
    ]
    for name in [*others, "team:%2e%2e/eve", "team:~", "team:a b", "team:a@main", "https://evil.example/bert"]:
        with touched() as events, pytest.raises(InvalidRequest):
            some.resolved("model", name)
        assert not [event for event in events if event.startswith("socket.connect")]


def test_a_cached_model_of_a_root_of_the_hub_has_safe_files(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    in_cache(tmp_path / "hub", "ann/good", **{"model.safetensors": ""})
    in_cache(tmp_path / "hub", "ann/pickled", **{"pytorch_model.bin": "x"})
    some = Roots({"team": "hf://ann"}, hub="cached")
    assert some.resolved("model", "team:good") == "ann/good"
    for name, message in (("pickled", "are pickled"), ("none", "does not hold")):
        with pytest.raises(InvalidRequest, match=message):
            some.resolved("model", f"team:{name}")


def test_what_a_node_cannot_read_is_refused_with_the_node(roots: Roots) -> None:
    blind: dict[str, list[str]] = {str(roots.data["team"] / "texts"): ["big", "small"]}

    def unreadable(path: str) -> list[str]:
        return blind.get(path, [])

    check_nodes(SMALL | {"model": "team:bert", "tokenizer": "team:bert"}, roots, unreadable)
    with pytest.raises(InvalidField, match=r"big, small cannot read 'team:texts'") as error:
        check_nodes(SMALL | {"model": "team:bert", "dataset": "team:texts"}, roots, unreadable)
    assert error.value.pointer == "/dataset"
    assert str(roots.data["team"]) not in str(error.value)


def in_cache(folder: Path, name: str, **files: str) -> Path:
    """A model in the hub's cache in this folder: its snapshot, whose files are links as the hub's client makes them."""
    place = folder / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / "0"
    (place / "refs").mkdir(parents=True)
    (place / "blobs").mkdir()
    (place / "refs" / "main").write_text("0")
    snapshot.mkdir(parents=True)
    for number, (file, text) in enumerate({"config.json": json.dumps(CONFIG), **files}.items()):
        (place / "blobs" / str(number)).write_text(text)
        (snapshot / file).symlink_to(place / "blobs" / str(number))
    return snapshot


@pytest.mark.parametrize("hub", ["cached", "online"])
def test_a_model_of_the_hub_has_safe_files(
    hub: str, roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    some = with_hub(roots, "*", hub=hub)
    index = "model.safetensors.index.json"
    in_cache(tmp_path / "hub", "ann/good", **{index: '{"weight_map": {"a": "model-1.safetensors"}}'})
    in_cache(tmp_path / "hub", "ann/pickled", **{"pytorch_model.bin": "x"})
    in_cache(tmp_path / "hub", "ann/outside", **{index: '{"weight_map": {"a": "../../secret.safetensors"}}'})
    in_cache(tmp_path / "hub", "ann/adapter", **{"adapter_config.json": "{}"})
    assert some.resolved("model", "ann/good") == some.resolved("tokenizer", "ann/good") == "ann/good"
    for name in ("ann/pickled", "ann/outside", "ann/adapter"):
        with pytest.raises(InvalidRequest, match=name):
            some.resolved("model", name)


def test_a_cached_model_is_in_the_cache(roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("runner.log", "study", "ann/none"):
        with pytest.raises(InvalidRequest, match="does not hold"):
            with_hub(roots, "*").resolved("model", name)


def test_a_file_of_the_search_is_not_a_model_of_the_hub(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "runner.log").write_text(json.dumps(CONFIG))
    with pytest.raises(InvalidField, match="a file of the search"):
        job_of(SMALL | {"model": "runner.log"}, with_hub(roots, "*", hub="online"), tmp_path, "cpu")


def test_no_path_is_a_hub_id(roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the canary is a folder of that name
    for name in ["canary", *spellings(tmp_path / "canary")]:
        with pytest.raises(InvalidRequest):
            with_hub(roots, "*").resolved("model", name)


def test_a_server_shares_its_cpu_and_refuses_cards_that_it_has_not(roots: Roots) -> None:
    cards = {"cpu": "a plain processor"}
    assert checked(body(devices=2, device="cpu"), roots, ANNA, cards)["devices"] == 2
    with pytest.raises(InvalidField) as error:
        checked(body(card="H100"), roots, ANNA, cards)
    assert error.value.pointer == "/card"
