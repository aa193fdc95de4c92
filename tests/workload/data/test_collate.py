"""What the Trainer is given: random samples and real ones, trained on by real tiny models."""

import json
import re
from dataclasses import replace
from pathlib import Path
from pydoc_data import topics
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ByT5Tokenizer

from autotune.core.errors import StorageFailed
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.workload import Workload
from autotune.workload.data import prepare as prepared
from autotune.workload.data.collate import training_data
from autotune.workload.data.prepare import PreparedData, prepare_data
from autotune.workload.data.synthetic import POOL_BYTES, SyntheticSamples
from autotune.workload.model.build import build_model, choose_task, tasks_of
from autotune.workload.model.config import read_config
from autotune.workload.read import prepare
from tests.makers import refusal_of
from tests.workload.model.test_build import workload_of

PARAGRAPHS = [" ".join(text.split()) for topic in topics.topics.values() for text in topic.split("\n\n")]
PARAGRAPHS = [text for text in PARAGRAPHS if text][:300]
MINIS = ("bert-mini", "gpt2-mini", "llama-mini", "t5-mini", "vit-mini", "moe-mini")


def text_file(folder: Path, texts: list[str] = PARAGRAPHS, name: str = "topics.txt") -> Path:
    (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    return folder / name


def json_file(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / name


def image_folder(folder: Path, each: int = 4) -> Path:
    random = np.random.default_rng(0)
    for label, mode in (("cat", "RGB"), ("dog", "L")):
        (folder / label).mkdir(parents=True)
        for number in range(each):
            shape = (40 + number, 50, 3) if mode == "RGB" else (40, 50)
            Image.fromarray(random.integers(0, 255, shape, dtype=np.uint8)).save(folder / label / f"{number}.png")
    return folder


def prepared_by(
    cache: Path, data: Path, model: str = "bert-mini", task: str | None = None, **options: Any
) -> PreparedData:
    """The data prepared for a model, with a batch of 4 and 32 tokens unless the options say otherwise."""
    length = options.pop("sequence_length", 32)
    request = tuning_request(model, options.pop("global_batch_size", 4), dataset=str(data), task=task, **options)
    config, _ = read_config(model, False)
    return prepare_data(request, config, choose_task(config, task), length, cache)


def on_data(folder: Path, data: Path, model: str = "bert-mini", **options: Any) -> Workload:
    """The workload of a model on this data, with a batch of 4."""
    return prepare(tuning_request(model, 4, dataset=str(data), **options), folder / "cache")


def refusal(cache: Path, data: Path, **options: Any) -> str:
    """The one line with which data is refused; nothing may be left in the cache."""
    text = refusal_of(lambda: prepared_by(cache, data, **options))
    assert not cache.exists() or not [path for path in cache.iterdir() if path.name.startswith(".")]
    return text


def a_step(workload: Workload, batch_size: int = 4) -> dict[str, Any]:
    """One forward and backward of the workload's real model on a real batch; returns the batch."""
    dataset, collator, _ = training_data(workload, 40, seed=0)
    batch = collator([dataset[index] for index in range(batch_size)])
    loss = build_model(workload)(**batch).loss
    loss.backward()
    assert loss.isfinite()
    return dict(batch)


# Random samples


@pytest.mark.parametrize(
    ("name", "task"), [(name, task) for name in MINIS for task in tasks_of(read_config(name, False)[0])]
)
def test_a_model_learns_from_random_samples_of_each_of_its_tasks(name: str, task: str) -> None:
    batch = a_step(replace(workload_of(name, task), sequence_length=24))
    main = batch["pixel_values"] if task == "image-classification" else batch["input_ids"]
    assert main.shape == ((4, 3, 64, 64) if task == "image-classification" else (4, 24))
    assert main.float().std() > 0.5, "matrix products are faster on zeros"


def test_random_samples_have_the_length_asked_for_and_repeat_a_bounded_pool() -> None:
    config, _ = read_config("llama-8b", False)
    samples = SyntheticSamples(config, "causal-lm", 131072, 10**9, 0)
    assert len(samples) == 10**9
    assert samples[10**9 - 1]["input_ids"].shape == (131072,)
    assert sum(values.nbytes for values in samples._pool.values()) <= POOL_BYTES
    images = SyntheticSamples(read_config("vit-base", False)[0], "image-classification", None, 8, 0)
    assert sum(values.nbytes for values in images._pool.values()) <= POOL_BYTES
    with pytest.raises(IndexError):
        images[8]


def test_each_random_sample_of_a_masked_model_has_a_label() -> None:
    config, _ = read_config("bert-mini", False)
    assert all((sample["labels"] != -100).any() for sample in random_samples(config, "masked-lm", 3, 200))
    labels = torch.stack([sample["labels"] for sample in random_samples(config, "masked-lm", 100, 200)])
    assert (labels != -100).float().mean().item() == pytest.approx(0.15, abs=0.02)


def random_samples(config: Any, task: str, tokens: int, samples: int) -> list[Any]:
    return list(SyntheticSamples(config, task, tokens, samples, 0))


# Real text


@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini", "t5-mini"])
def test_a_language_model_learns_from_a_text_file(name: str, tmp_path: Path) -> None:
    workload = on_data(tmp_path, text_file(tmp_path), name, sequence_length=32)
    assert workload.samples == len(PARAGRAPHS)
    assert re.fullmatch(r"byte-pair tokenizer trained on the data \(\d+ tokens\)", workload.text_source)
    batch = a_step(Workload.from_dict(json.loads(json.dumps(workload.to_dict()))))
    assert batch["input_ids"].shape[1] <= 32
    assert set(batch) <= {"input_ids", "attention_mask", "labels", "decoder_input_ids"}


def test_texts_keep_their_own_lengths_and_are_padded_by_the_batch(tmp_path: Path) -> None:
    data = text_file(tmp_path, ["one", "two three four", "a " * 500] * 4)
    workload = on_data(tmp_path, data, "gpt2-mini", sequence_length=64)
    dataset, collator, tokenizer = training_data(workload, 10, 0)
    lengths = [len(row["input_ids"]) for row in dataset]
    assert max(lengths) == 64
    assert min(lengths) < 10
    batch = collator([dataset[0], dataset[1]])
    assert batch["input_ids"].shape == (2, max(lengths[:2]))
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert tokenizer.pad_token_id == 0


def test_a_short_text_alone_in_a_masked_batch_still_has_a_label(tmp_path: Path) -> None:
    data = text_file(tmp_path, ["yes", "no"] * 10)
    workload = on_data(tmp_path, data)
    dataset, collator, tokenizer = training_data(workload, 10, 0)
    for _ in range(30):
        batch = collator([dataset[0]])
        chosen = batch["labels"][batch["labels"] != -100]
        assert len(chosen)
        assert not set(chosen.tolist()) & set(tokenizer.all_special_ids)


def test_a_folder_is_read_split_by_split(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "test").mkdir(parents=True)
    text_file(folder, PARAGRAPHS[:30], "train-00000.txt")
    text_file(folder, PARAGRAPHS[30:40], "train-00001.txt")
    text_file(folder / "test", PARAGRAPHS[40:45], "a.txt")
    (folder / "notes.md").write_text("# not data")
    assert prepared_by(tmp_path / "cache", folder).samples == 40
    assert prepared_by(tmp_path / "cache", folder, dataset_split="test").samples == 5
    assert prepared_by(tmp_path / "cache", folder, dataset_split="train[:50%]").samples == 20
    assert "no split 'validation'" in refusal(tmp_path / "cache", folder, dataset_split="validation")


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": PARAGRAPHS[:12]})
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select(range(5))}).save_to_disk(str(tmp_path / "two"))
    assert prepared_by(tmp_path / "cache", tmp_path / "one").samples == 12
    assert prepared_by(tmp_path / "cache", tmp_path / "two", dataset_split="test").samples == 5
    assert "no split 'dev'" in refusal(tmp_path / "cache", tmp_path / "two", dataset_split="dev")


def test_prepared_data_is_reused_until_the_file_or_the_question_changes(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    first = prepared_by(tmp_path / "cache", data)
    stamp = (Path(first.folder) / "prepared.json").stat().st_mtime_ns
    assert prepared_by(tmp_path / "cache", data) == first
    assert (Path(first.folder) / "prepared.json").stat().st_mtime_ns == stamp
    assert prepared_by(tmp_path / "cache", data, sequence_length=16).folder != first.folder
    data.write_bytes(data.read_bytes())  # written again with the same content
    assert prepared_by(tmp_path / "cache", data) == first
    text_file(tmp_path, PARAGRAPHS[:50])
    changed = prepared_by(tmp_path / "cache", data)
    assert changed.folder != first.folder
    assert changed.identity != first.identity
    assert sorted(path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")) == []


def test_blank_rows_are_left_out_and_large_data_is_represented_by_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepared_by(tmp_path / "cache", text_file(tmp_path, ["good text", "", "   "] * 5))
    assert data.samples == 5
    assert "10 of 15 rows" in data.notes[0].text
    monkeypatch.setattr(prepared, "MOST_TEXTS", 5)
    data = prepared_by(tmp_path / "cache", text_file(tmp_path))
    assert data.samples == 5
    assert f"5 of {len(PARAGRAPHS)} rows" in data.notes[0].text
    assert "no row to learn from" in refusal(tmp_path / "cache", json_file(tmp_path, [{"text": " "}] * 9))


# The longest samples


def test_the_longest_text_is_known_by_its_place(tmp_path: Path) -> None:
    texts = [f"a line of text, number {number}" for number in range(30)]
    texts[17] = "word " * 100
    file = text_file(tmp_path, texts)
    data = prepared_by(tmp_path / "cache", file, model="gpt2-mini", sequence_length=64)
    assert data.longest == (17,)
    again = prepared_by(tmp_path / "cache", file, model="gpt2-mini", sequence_length=64)
    assert again == data, "found the second time, too"
    workload = Workload("x", "causal-lm", data=data.folder)
    rows, _, _ = training_data(workload, 30, 0)
    assert [len(row["input_ids"]) for row in rows].index(64) == 17


def test_a_translation_s_longest_source_and_longest_target_may_be_different_rows(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "summary": f"sum {number}"} for number in range(20)]
    rows[5]["text"] = "word " * 40
    rows[11]["summary"] = "word " * 40
    data = prepared_by(
        tmp_path / "cache", json_file(tmp_path, rows), model="t5-mini", text_column="text", label_column="summary"
    )
    assert sorted(data.longest) == [5, 11]
    dataset, collator, _ = training_data(Workload("x", "seq2seq-lm", data=data.folder), 20, 0)
    both = collator([dataset[place] for place in data.longest])
    every = collator([dataset[place] for place in range(20)])
    assert both["input_ids"].shape[1] == every["input_ids"].shape[1]
    assert both["labels"].shape[1] == every["labels"].shape[1]


# Tasks with labels


@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini", "t5-mini"])
def test_texts_are_classified_by_words_and_the_config_learns_how_many(name: str, tmp_path: Path) -> None:
    rows = [{"text": text, "label": ["good", "bad", "so-so"][n % 3]} for n, text in enumerate(PARAGRAPHS[:30])]
    workload = on_data(tmp_path, json_file(tmp_path, rows), name, task="sequence-classification", sequence_length=32)
    assert len(workload.model_config["id2label"]) == 3
    assert Note(NoteKind.LABELS, {"labels": 3}) in workload.notes
    batch = a_step(workload)
    assert batch["labels"].tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize("name", ["bert-mini", "llama-mini"])
def test_words_are_tagged_one_tag_a_word(name: str, tmp_path: Path) -> None:
    words = [text.split()[:9] for text in PARAGRAPHS[:20]]
    rows = [{"tokens": one, "ner_tags": [f"B-{len(word) % 3}" for word in one]} for one in words]
    workload = on_data(tmp_path, json_file(tmp_path, rows), name, task="token-classification")
    assert len(workload.model_config["id2label"]) == 3
    dataset, _, _ = training_data(workload, 4, 0)
    for row, one in zip(dataset, words, strict=False):
        assert len(row["labels"]) == len(row["input_ids"])
        assert [tag for tag in row["labels"] if tag != -100] == [len(word) % 3 for word in one]
    a_step(workload)


@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini"])
def test_questions_are_answered_by_tokens_of_the_context(name: str, tmp_path: Path) -> None:
    rows = []
    for text in PARAGRAPHS[:20]:
        answer = text.split()[-1]
        start = text.rindex(answer)
        rows.append(
            {"question": "What ends it?", "context": text, "answers": {"text": [answer], "answer_start": [start]}}
        )
    rows.append({"question": "None?", "context": "Nothing here.", "answers": {"text": [], "answer_start": []}})
    workload = on_data(tmp_path, json_file(tmp_path, rows), name, task="question-answering", sequence_length=512)
    dataset, _, tokenizer = training_data(workload, 4, 0)
    for row, asked in zip(list(dataset)[:20], rows, strict=False):
        found = tokenizer.decode(row["input_ids"][row["start_positions"] : row["end_positions"] + 1])
        assert asked["answers"]["text"][0] in found  # type: ignore[index]
    assert (dataset[20]["start_positions"], dataset[20]["end_positions"]) == (0, 0)
    a_step(workload)


def test_images_are_decoded_in_the_loader_at_the_size_of_the_model(tmp_path: Path) -> None:
    workload = on_data(tmp_path, image_folder(tmp_path / "pets"), "vit-mini")
    assert workload.samples == 8
    assert workload.sequence_length is None
    assert "64 x 64" in workload.text_source
    for file in (tmp_path / "pets").rglob("*.png"):
        file.unlink()  # the prepared data stands alone
    batch = a_step(workload)
    assert batch["pixel_values"].shape == (4, 3, 64, 64)
    assert -1 <= batch["pixel_values"].min() < batch["pixel_values"].max() <= 1
    images, _, _ = training_data(workload, 100, 0)
    assert len(list(images)) == len(images) == 8, "whoever iterates them comes to an end"


# Tokenizers


def test_a_named_tokenizer_reads_the_data_and_pads_it(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    workload = on_data(tmp_path, text_file(tmp_path), "t5-mini", tokenizer=str(tmp_path / "bytes"), sequence_length=32)
    assert "(384 tokens)" in workload.text_source
    assert workload.model_config["eos_token_id"] == 1
    a_step(workload)


def test_the_tokenizer_in_the_models_own_folder_is_used(tmp_path: Path) -> None:
    config, _ = read_config("t5-mini", False)
    config.save_pretrained(tmp_path / "model")
    data = text_file(tmp_path)
    assert "trained" in prepared_by(tmp_path / "cache", data, model=str(tmp_path / "model")).text_source
    ByT5Tokenizer().save_pretrained(tmp_path / "model")
    assert "(384 tokens)" in prepared_by(tmp_path / "cache", data, model=str(tmp_path / "model")).text_source


# Bad data: one clear line each


def test_text_that_goes_bad_late_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "late.txt").write_bytes("ä".encode() * 100_000 + b"\nline\n" + b"\xff\n")
    assert "cannot be read as txt" in refusal(tmp_path / "cache", tmp_path / "late.txt")


def test_data_smaller_than_one_batch_is_refused_also_when_found_in_the_cache(tmp_path: Path) -> None:
    data = text_file(tmp_path, PARAGRAPHS[:10])
    assert prepared_by(tmp_path / "cache", data).samples == 10
    for cache in (tmp_path / "cache", tmp_path / "fresh"):
        text = refusal(cache, data, global_batch_size=11)
        assert "10 usable samples" in text
        assert "smaller than one batch of 11" in text


def test_a_cache_that_cannot_be_written_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageFailed, match="cannot be written"):
        prepared_by(tmp_path / "cache", text_file(tmp_path))


def test_a_tokenizer_without_a_mask_is_refused_for_a_masked_model(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    said = refusal(tmp_path / "cache", text_file(tmp_path), tokenizer=str(tmp_path / "bytes"))
    assert "no mask token" in said
