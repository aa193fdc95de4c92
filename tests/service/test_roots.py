"""Names of models and data: what is below a root or of the hub, and nothing else; without code and pickles."""

import contextlib
import json
import os
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from safetensors.torch import save_file

from autotune.core.errors import InvalidRequest
from autotune.service.roots import Roots
from tests.service.application import CANARY, CONFIG


def test_what_is_below_the_roots_is_listed_by_the_names_that_are_taken(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "models" / "out").symlink_to(tmp_path / "canary")
    (tmp_path / "models" / "no name.txt").touch()
    assert roots.names("models") == ["team:small.json", "team:bert"]
    assert roots.names("data") == ["team:texts", "team:texts/corpus.jsonl"]


def spellings(outside: Path) -> list[str]:
    """Names that lead, or could be read to lead, to these files outside of the root."""
    up, file = "..", outside.name
    paths = [f"{up}/{file}", f"{up}/{up}/{file}", f"bert/{up}/{up}/{file}", f"./{up}/{file}", f"{up}//{file}"]
    paths += [f"bert/./{up}/{up}/{file}", str(outside), f"/{outside}", f"//{outside}", f"~/{file}", f"~root/{file}"]
    paths += [f"{up}\\{file}", f"bert\\{up}\\{up}\\{file}", f"C:\\{file}", f"\\\\host\\{file}"]
    paths += ["/etc/passwd", "../../../../../../etc/passwd", "/proc/self/environ", "/proc/self/fd/0", "/dev/stdin", "."]
    paths += [f".hidden/{up}/{up}/{file}", ".hidden", "bert/", "/bert", "bert//config.json", "bert/.", "bert/.."]
    paths += [f"{up}/{file}#", f"{up}/{file}?x", f"#/{up}/{file}", f"bert#/{up}/{up}/{file}"]
    paths += [f"{scheme}{outside}" for scheme in ("file:", "file://", "file://localhost")]
    paths += [f"http://127.0.0.1/{file}", f"hf://{file}", "s3://b/k"]
    dots = ("\u2025", "\uff0e\uff0e", "\ufe52\ufe52", "\u2024\u2024")  # leaders, full width and small
    slashes = ("\u2215", "\u2044", "\uff0f", "\u29f8", "%c0%af", "%5c", "%255c", "\t/", "\n/", "\0/")
    paths += [f"{dot}/{file}" for dot in dots] + [f"{up}{slash}{file}" for slash in slashes]
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
    with pytest.raises(InvalidRequest, match="Python code of its own"):
        roots.resolved("model", "team:bert")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused_unless_safetensors_are_read_in_their_place(
    file: str, roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "bert"
    (folder / file).write_bytes(pickle.dumps(Canary()))
    with pytest.raises(InvalidRequest, match="pickled"):
        roots.resolved("model", "team:bert")
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    assert roots.resolved("model", "team:bert")
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
        assert roots.resolved("model", "team:bert")
    else:
        with pytest.raises(InvalidRequest, match=r"pickled.*\(model.safetensors.index.json\)"):
            roots.resolved("model", "team:bert")


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
    with pytest.raises(InvalidRequest, match=r"is an adapter.*Name the model that it is for"):
        roots.resolved("model", "team:bert")


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


def test_no_path_is_a_hub_id(roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the canary is a folder of that name
    for name in ["canary", *spellings(tmp_path / "canary")]:
        with pytest.raises(InvalidRequest):
            with_hub(roots, "*").resolved("model", name)
