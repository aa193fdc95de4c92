"""Layouts of data that people have: what is made of each, or the line with which it is refused."""

import bz2
import gzip
import importlib.util
import json
import lzma
import re
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from autotune.core import Workload
from autotune.core.request import tuning_request
from autotune.workload.data.collate import training_data
from autotune.workload.data.prepare import PreparedData
from autotune.workload.data.sources import COMPRESSIONS, READERS
from autotune.workload.model.build import build_model
from autotune.workload.read import prepare
from tests.docs.pages import PAGES
from tests.workload.data.test_collate import a_step, image_folder, json_file, prepared_by, refusal

ROWS = 8
MODELS = {
    "causal-lm": "gpt2-mini",
    "masked-lm": "bert-mini",
    "seq2seq-lm": "t5-mini",
    "sequence-classification": "bert-mini",
    "token-classification": "bert-mini",
    "question-answering": "bert-mini",
    "image-classification": "vit-mini",
}
LM, PAIRS, CLASSES = "causal-lm", "seq2seq-lm", "sequence-classification"
CHAT_TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv(*cells: str, header: str = "text,label") -> bytes:
    return "\n".join([header, *cells, ""]).encode()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without a chat template, which adds no special tokens by itself, as that of GPT-2."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|pad|>", "<|end|>", "<|mask|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tools|>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["red green blue"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", pad_token="<|pad|>", mask_token="<|mask|>"
    )


@pytest.fixture(scope="module")
def plain(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the tokenizer."""
    folder = tmp_path_factory.mktemp("plain")
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def chatty(plain: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the same tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)


def read(folder: Path, file: Path, task: str, tokenizer: str, **options: Any) -> tuple[PreparedData, str, Any]:
    """What is prepared, the text of its first sample, and what is learnt from it: a text for language models."""
    if task != "image-classification":
        options |= {"tokenizer": tokenizer}
    data = prepared_by(
        folder / "cache", file, MODELS[task], task, **{"sequence_length": 128, "global_batch_size": 2, **options}
    )
    samples, collator, opened = training_data(Workload("x", task, data=data.folder), 2, 0)
    batch = collator([samples[0], samples[1]])
    assert len({len(values) for values in batch.values()}) == 1
    learnt = batch["labels"][0]
    learnt = opened.decode(learnt[learnt != -100]) if task in (LM, PAIRS) else learnt.tolist()
    return data, opened.decode([token for token in samples[0]["input_ids"] if token]), learnt


def written(folder: Path, name: str, content: Any) -> Path:
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
        return folder / name
    rows = [content(number) for number in range(ROWS)] if callable(content) else [content] * ROWS
    return json_file(folder, rows, name)


# Rows: content, task, options -> the first sample's text, and what is learnt from it. Others: docs/own_data.md.

CONVERSATION = [said("user", "red?"), said("assistant", "blue")]
SPOKEN, TEMPLATED = "user: red?\nassistant: blue", "<|user|>red?<|end|><|assistant|>blue<|end|>"
IN_PARTS = [{"role": "user", "content": [{"type": "text", "text": "red"}, {"type": "text", "text": "?"}]}]
SHARE_GPT = [{"from": "human", "value": "red?"}, {"from": "gpt", "value": "blue"}]
READ: dict[str, tuple[Any, str, dict[str, str], str, Any]] = {
    "the only text": ({"id": 1, "body": "red green"}, LM, {}, "red green", "red green"),
    "a text beside others": ({"text": "red one", "title": "blue"}, LM, {}, "red one", "red one"),
    "conversation of another name": ({"id": "a", "dialog": CONVERSATION}, LM, {}, SPOKEN, SPOKEN),
    "conversation named": ({"text": "no", "dialog": CONVERSATION}, LM, {"text_column": "dialog"}, SPOKEN, SPOKEN),
    "conversation of ShareGPT": ({"conversations": SHARE_GPT, "id": "1"}, LM, {}, SPOKEN, SPOKEN),
    "conversation in parts": ({"messages": IN_PARTS}, LM, {}, "user: red?", "user: red?"),
    "conversation for a masked model": ({"messages": CONVERSATION}, "masked-lm", {}, SPOKEN, ...),
    "conversation as source and target": ({"messages": CONVERSATION}, PAIRS, {}, SPOKEN, SPOKEN),
    "conversation with a class": ({"messages": CONVERSATION, "label": 1}, CLASSES, {}, SPOKEN, 1),
    "prompt and completion beside a label": (
        {"prompt": "red ", "completion": "blue", "label": True},
        *(LM, {}, "red blue<|end|>", " blue<|end|>"),
    ),
    "prompt and completion as conversations": (
        {"prompt": CONVERSATION[:1], "completion": CONVERSATION[1:]},
        *(LM, {}, f"{SPOKEN}<|end|>", " blue<|end|>"),
    ),
    "prompt and completion by other names": (
        {"question": "red ", "answer": "blue"},
        *(LM, {"text_column": "question", "label_column": "answer"}, "red blue<|end|>", " blue<|end|>"),
    ),
    "prompt and completion as source and target": ({"prompt": "red", "completion": "blue"}, PAIRS, {}, "red", "blue"),
    "translation the other way": (
        {"translation": {"en": "red", "de": "rot"}},
        *(PAIRS, {"text_column": "translation.de", "label_column": "translation.en"}, "rot", "red"),
    ),
    "nested text": ({"body": {"text": "red one", "n": 1}}, LM, {}, "red one", "red one"),
    "nested class": ({"text": "red", "meta": {"stars": 1}}, CLASSES, {"label_column": "meta.stars"}, "red", 1),
    "several classes, as floats": ({"text": "red", "label": [0.0, 1.0, 1.0]}, CLASSES, {}, "red", [0, 1, 1]),
    "several classes by number": (
        lambda n: {"text": "red", "labels": [n % 3, 3] if n % 2 else [1]},
        *(CLASSES, {}, "red", [0, 1, 0, 0]),
    ),
    "several classes by name": (
        lambda n: {"text": "red", "labels": ["joy", "anger"] if n % 2 else ["joy"]},
        *(CLASSES, {}, "red", [0, 1]),
    ),
    "several numbers": ({"text": "red", "label": [0.5, 2.5]}, CLASSES, {}, "red", [0.5, 2.5]),
    "a number": (lambda n: {"text": "red", "label": n + 0.5}, CLASSES, {}, "red", 0.5),
}


@pytest.mark.parametrize("layout", READ)
def test_a_layout_is_read(layout: str, plain: str, tmp_path: Path) -> None:
    content, task, options, text, learnt = READ[layout]
    data, first, label = read(tmp_path, written(tmp_path, "rows.jsonl", content), task, plain, **options)
    assert data.samples == ROWS
    assert text is ... or first == text
    assert learnt is ... or label == learnt
    (note,) = map(str, data.notes or ("",))
    for name in re.findall(r"'(.*?)'", note):
        assert name.partition(".")[0] in next(datasets_rows(tmp_path)), note


def datasets_rows(folder: Path) -> Any:
    return (json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines())


# Pairs of texts


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"sentence1": "red?", "sentence2": "blue", "idx": 0}, {}),
        ({"premise": "red?", "hypothesis": "blue", "uid": "a"}, {}),
        ({"passage": "blue", "question": "red?"}, {}),
        ({"text": "red?", "text_pair": "blue"}, {}),
        ({"title": "blue", "text": "no", "body": "red?"}, {"text_column": "body, title"}),
    ],
    ids=["GLUE", "NLI", "BoolQ", "transformers", "named"],
)
def test_a_pair_of_texts_is_tokenised_as_a_pair(
    row: dict[str, Any], options: dict[str, str], plain: str, tmp_path: Path
) -> None:
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain, model_input_names=names)
    tokenizer.save_pretrained(tmp_path / "typed")
    file = written(tmp_path, "rows.jsonl", row | {"label": 1})
    data, _, learnt = read(tmp_path, file, CLASSES, str(tmp_path / "typed"), **options)
    samples, _, _ = training_data(Workload("x", CLASSES, data=data.folder), 2, 0)
    assert samples[0] == {**tokenizer("red?", "blue"), "labels": 1}
    assert set(samples[0]["token_type_ids"]) == {0, 1}
    assert learnt == 1
    first, second = (name for text in ("red?", "blue") for name, value in row.items() if value == text)
    assert str(data.notes[0]) == f"the text is '{first}' and '{second}', the label 'label' (2 classes)"


def test_a_pair_is_cut_at_its_longer_text_and_needs_both(plain: str, tmp_path: Path) -> None:
    rows = [{"premise": "red " * 9, "hypothesis": "blue", "label": 1}] * 4
    rows += [{"premise": "red", "hypothesis": "", "label": 0}, {"premise": None, "hypothesis": "blue", "label": 0}]
    data, first, _ = read(tmp_path, json_file(tmp_path, rows), CLASSES, plain, sequence_length=12)
    assert data.samples == 4
    assert first.startswith("red red ")
    assert first.endswith(" blue")
    assert len(first) < len("red " * 9)
    assert "2 of 6 rows" in str(data.notes[-1])


@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini", "t5-mini", "roberta"])
def test_a_model_learns_from_pairs_of_texts(name: str, tmp_path: Path) -> None:
    if name == "roberta":  # it has one type of tokens
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        config = AutoConfig.for_model("roberta", vocab_size=600, type_vocab_size=1, **sizes)
        config.save_pretrained(tmp_path / name)
        name = str(tmp_path / name)
    rows = [{"premise": f"red {n}", "hypothesis": "blue", "label": n % 3} for n in range(ROWS)]
    workload = prepare(
        tuning_request(name, 4, task=CLASSES, dataset=str(json_file(tmp_path, rows)), sequence_length=16),
        tmp_path / "cache",
    )
    assert ("token_type_ids" in a_step(workload)) == (name == "bert-mini")


# Conversations


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)], ids=["objects", "text"])
def test_conversations_and_tools_are_written_by_the_chat_template(tools: Any, chatty: str, tmp_path: Path) -> None:
    row = {"messages": [said("user", "red?"), CALL], "tools": tools}
    data, first, _ = read(tmp_path, written(tmp_path, "rows.jsonl", row), LM, chatty, sequence_length=512)
    called = json.dumps(CALL["tool_calls"])
    assert first == f"<|tools|>{json.dumps(TOOLS)}<|user|>red?<|end|><|assistant|>{called}<|end|>"
    assert "chat template" in data.notes[0].text


def test_conversations_are_written_again_once_the_chat_template_has_changed(chatty: str, tmp_path: Path) -> None:
    """transformers keeps it in a file of its own."""
    own = Path(shutil.copytree(chatty, tmp_path / "own"))
    rows = written(tmp_path, "rows.jsonl", {"messages": CONVERSATION})
    before = read(tmp_path, rows, LM, str(own))[0]
    (own / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("{{ eos_token }}", ""), encoding="utf-8")
    after, text, _ = read(tmp_path, rows, LM, str(own))
    assert after.folder != before.folder
    assert text == TEMPLATED.replace("<|end|>", "")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the Trainer about SFTConfig's defaults
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [said("system", "green"), *CONVERSATION]},
        {"prompt": "red? ", "completion": "blue"},
        {"prompt": CONVERSATION[:1], "completion": CONVERSATION[1:]},
        {"messages": CONVERSATION * 20},
    ],
    ids=["messages", "prompt and completion", "prompt and completion as conversations", "cut"],
)
def test_samples_are_those_that_trl_trains_on(row: Any, chatty: str, tmp_path: Path) -> None:
    data, _, _ = read(tmp_path, written(tmp_path, "rows.jsonl", row), LM, chatty, sequence_length=24)
    samples, collator, _ = training_data(Workload("x", LM, data=data.folder), 2, 0)
    ours = collator([samples[0]])
    trainer = SFTTrainer(
        build_model(prepare(tuning_request("gpt2-mini", 4), tmp_path / "cache")),
        SFTConfig(str(tmp_path / "out"), max_length=24, use_cpu=True, report_to="none", bf16=False),
        train_dataset=datasets.Dataset.from_list([row] * 2),
        processing_class=PreTrainedTokenizerFast.from_pretrained(chatty),
    )
    theirs = trainer.train_dataset[0]
    assert ours["input_ids"][0].tolist() == theirs["input_ids"]
    assert ours["labels"][0].tolist() == theirs["labels"]


# The page about data

PAGE = PAGES["docs/own_data.md"]
SHOWN = re.findall(r"^\| `(\{.*\})` \| ([\w-]+) \| (.*?) ?\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("row", "task", "note"), SHOWN, ids=[f"{task} {row[:30]}" for row, task, _ in SHOWN])
def test_of_a_row_that_the_page_shows_the_note_is_what_it_says(row: str, task: str, note: str, tmp_path: Path) -> None:
    file = written(tmp_path, "rows.jsonl", json.loads(row))
    assert "; ".join(map(str, prepared_by(tmp_path / "cache", file, MODELS[task], task).notes)) == note


def test_the_page_names_every_ending_and_task() -> None:
    assert {*MODELS} - {"image-classification"} == {task for _, task, _ in SHOWN}
    assert not [ending for ending in (*READERS, *COMPRESSIONS) if f"`{ending}`" not in PAGE]


# Files

TEXTS = [f"red {number}" for number in range(ROWS)]
TABLE = [f"red {number},{number % 2}" for number in range(ROWS)]
JSON_LINES = lines(*({"text": text} for text in TEXTS))
FILES: dict[str, bytes] = {
    "bom.txt": "\n".join(TEXTS).encode("utf-8-sig"),
    "rows.txt.bz2": bz2.compress("\n".join(TEXTS).encode()),
    "bom.jsonl": b"\xef\xbb\xbf" + JSON_LINES,
    "rows.jsonl.xz": lzma.compress(JSON_LINES),
    "ROWS.JSONL.GZ": gzip.compress(JSON_LINES),
    "list.json": json.dumps([{"text": text} for text in TEXTS]).encode(),
    "texts.json": json.dumps(TEXTS).encode(),
    "rows.csv": csv(*TABLE),
    "bom.csv": b"\xef\xbb\xbf" + csv(*TABLE),
    "semicolons.csv": csv(*TABLE).replace(b",", b";"),
    "quotes.csv": csv(*(f'"{row[:5]}",{row[-1]}' for row in TABLE), header='"text","label"'),
    "ROWS.TSV": csv(*TABLE).replace(b",", b"\t"),
    "commas.tsv": csv(*TABLE),
    "rows.ndjson": JSON_LINES,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_it_is_written(name: str, plain: str, tmp_path: Path) -> None:
    data, first, _ = read(tmp_path, written(tmp_path, name, FILES[name]), LM, plain)
    assert (data.samples, first) == (ROWS, "red 0")


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_tables_of_arrow_are_read(ending: str, plain: str, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(str(tmp_path / "saved"))
    source = tmp_path / ("saved/data-00000-of-00001.arrow" if ending == ".arrow" else "rows.parquet")
    data, first, _ = read(tmp_path, written(tmp_path, f"data{ending}", source.read_bytes()), LM, plain)
    assert (data.samples, first) == (ROWS, "red 0")


def test_a_folder_has_one_separator(plain: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    written(tmp_path / "data", "a.tsv", csv(*TABLE).replace(b",", b"\t"))
    written(tmp_path / "data", "b.csv.gz", gzip.compress(csv(*TABLE).replace(b",", b"\t")))
    written(tmp_path / "data", "test.csv", csv(*TABLE).replace(b",", b"\t"))
    data, first, _ = read(tmp_path, tmp_path / "data", LM, plain)
    assert (data.samples, first) == (2 * ROWS, "red 0")
    assert read(tmp_path, tmp_path / "data", LM, plain, dataset_split="train[:75%]")[0].samples == 12
    written(tmp_path / "data", "test.csv", csv(*TABLE))
    assert "mixes separators" in refusal(tmp_path / "cache", tmp_path / "data", model="gpt2-mini", tokenizer=plain)


# Labels


@pytest.mark.parametrize(
    ("labels", "classes", "first", "samples"),
    [
        (["0", "1", "", "1", "0", "1", "0", "1"], 2, 0, 7),
        (["2", "1", "", "1", "2", "1", "2", "1"], 2, 1, 7),
        (["0.0", "1.0"] * 4, 2, 0, 8),
        (["N/A", "null", "None", "nan", "", "NA", "N/A", "null"], 5, 0, 7),
        (["1.5", "2.5", "", "1.5", "2.5", "1.5", "2.5", "1.5"], 1, 1.5, 7),
        (["1.0", "5.0", "3.0", "4.0", "1.0", "5.0", "3.0", "4.0"], 1, 1.0, 8),
    ],
    ids=["missing", "missing, from 1", "whole floats", "words", "numbers, missing", "whole numbers"],
)
def test_missing_labels_are_left_out_and_leave_classes_as_they_are(
    labels: list[str], classes: int, first: Any, samples: int, plain: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "rows.csv", csv(*(f"red {number},{label}" for number, label in enumerate(labels))))
    workload = prepare(
        tuning_request("bert-mini", 4, task=CLASSES, dataset=str(file), tokenizer=plain), tmp_path / "cache"
    )
    assert workload.samples == samples
    assert len(workload.model_config["id2label"]) == max(classes, 1)
    dataset, _, _ = training_data(workload, 2, 0)
    assert dataset[0]["labels"] == first
    assert any(f"{ROWS - samples} of {ROWS} rows have no label" in note.text for note in workload.notes) == (
        samples < ROWS
    )
    a_step(workload)


@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini", "t5-mini"])
@pytest.mark.parametrize(
    ("labels", "problem", "outputs"),
    [
        ([[0, 1, 1], [1, 0, 0]], "multi_label_classification", 3),
        ([["joy"], ["anger", "joy", "fear"]], "multi_label_classification", 3),
        ([["joy", None], ["anger", "joy", "fear"]], "multi_label_classification", 3),
        ([[0.5, 2.5], [1.5, 0.5]], "regression", 2),
    ],
    ids=["vectors", "names", "names with gaps", "numbers"],
)
def test_a_model_learns_several_labels(name: str, labels: Any, problem: str, outputs: int, tmp_path: Path) -> None:
    file = json_file(tmp_path, [{"text": f"red {n}", "label": labels[n % 2]} for n in range(ROWS)])
    workload = prepare(tuning_request(name, 4, task=CLASSES, dataset=str(file), sequence_length=16), tmp_path / "cache")
    assert workload.model_config["problem_type"] == problem
    assert len(workload.model_config["id2label"]) == outputs
    assert a_step(workload)["labels"].shape == (4, outputs)


# Refused, in one line

MIXED = [{"type": "image"}, {"type": "text", "text": "red?"}]
REFUSED: dict[str, tuple[Any, str, dict[str, str], str]] = {  # rows, task, options, what is said
    "several texts": ({"question": "red", "answer": "blue"}, LM, {}, "question (text), answer (text)"),
    "a pair of unusual names": (
        {"claim": "red", "evidence": "blue", "label": 1},
        *(CLASSES, {}, "a pair with --text-column=FIRST,SECOND"),
    ),
    "a pair of which one is missing": (
        {"claim": "red", "label": 1},
        *(CLASSES, {"text_column": "claim,evidence"}, "no column 'evidence'"),
    ),
    "a preference": ({"prompt": "red", "chosen": "a", "rejected": "b"}, LM, {}, "preference"),
    "objects of many kinds": (lambda n: {"text": {str(n): "red"}}, PAIRS, {}, "text (Json)"),
    "images in a conversation": ({"messages": [{"role": "user", "content": MIXED}]}, LM, {}, "holds image"),
    "objects as labels": ({"text": "red", "label": [{"a": 1}]}, CLASSES, {}, "not labels"),
    "numbers of many sizes": (
        lambda n: {"text": "red", "label": [0.5] * (1 + n % 2)},
        *(CLASSES, {}, "as many numbers in each row"),
    ),
    "fractions as tags": ({"tokens": ["red"], "ner_tags": [0.5]}, "token-classification", {}, "not classes"),
    "no column of that name": ({"text": "red"}, LM, {"text_column": "body.text"}, "no column 'body.text'"),
    "a column of numbers": ({"text": "red", "n": 1}, LM, {"text_column": "n"}, "int64, not text"),
    "a class as completion": ({"text": "red", "n": 1}, LM, {"label_column": "n"}, "int64, not text"),
    "tools that are not JSON": ({"messages": CONVERSATION, "tools": "add"}, LM, {}, "not JSON"),
    "token ids": ({"input_ids": [1, 2]}, LM, {}, "tokenised already"),
    "a surrogate in JSON": (b'{"text": "\\ud83d"}\n' * ROWS, LM, {}, "surrogate"),
    "numbers in lines": (b"1\n2\n", LM, {}, "cannot be read as json"),
}
REFUSED_FILES: list[tuple[str, bytes, str]] = [
    ("rows.csv", csv(*["red,"] * ROWS), "holds no labels"),
    ("rows.docx", b"red", "rows.docx is not that of a known kind"),
    ("rows", JSON_LINES, "rows is not that of a known kind"),
    ("rows.txt", bytes(range(256)), "not UTF-8"),
    ("rows.txt", "\n".join(TEXTS).encode("utf-16"), "not UTF-8"),
    ("rows.json", json.dumps({"data": [{"text": "red"}]}).encode(), "a single JSON object"),
    ("rows.txt.gz", b"red", "cannot be decompressed"),
    ("rows.txt.gz", gzip.compress(b"red\n" * 9)[:-9], "cannot be decompressed"),
    ("rows.csv", b"", "is empty"),
    ("rows.txt", b" \n" * 9, "white space"),
    ("rows.csv", b"text,label\n", "no rows"),
    ("rows.json", b"[]", "no rows"),
    ("rows.csv", csv("red,1", "red,1,2,3"), "cannot be read as csv"),
]


@pytest.mark.parametrize("layout", REFUSED)
def test_rows_are_refused_in_one_line(layout: str, plain: str, tmp_path: Path) -> None:
    content, task, options, words = REFUSED[layout]
    file = written(tmp_path, "rows.jsonl", content)
    assert words in refusal(tmp_path / "cache", file, model=MODELS[task], task=task, tokenizer=plain, **options)


@pytest.mark.parametrize(("name", "content", "words"), REFUSED_FILES)
def test_a_file_is_refused_in_one_line(name: str, content: bytes, words: str, plain: str, tmp_path: Path) -> None:
    file = written(tmp_path, name, content)
    assert words in refusal(tmp_path / "cache", file, model="bert-mini", task=CLASSES, tokenizer=plain)


@pytest.mark.skipif(importlib.util.find_spec("zstandard") is not None, reason="zstandard is installed")
def test_a_compression_without_its_library_names_it(tmp_path: Path) -> None:
    file = written(tmp_path, "rows.jsonl.zst", b"\x28\xb5\x2f\xfd")
    assert "pip install zstandard" in refusal(tmp_path / "cache", file, model="gpt2-mini")


def test_a_conversation_that_the_chat_template_refuses_is_shown_by_its_roles(chatty: str, tmp_path: Path) -> None:
    file = written(tmp_path, "rows.jsonl", {"messages": [said("user", "red?"), said("critic", "no")]})
    message = refusal(tmp_path / "cache", file, model="gpt2-mini", tokenizer=chatty)
    assert "user, critic" in message
    assert "unknown role" in message


def test_an_image_that_cannot_be_decoded_is_named_when_it_is_loaded(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets")
    whole = folder / "dog" / "3.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    whole.write_bytes(whole.read_bytes()[:-500])
    data = prepared_by(tmp_path / "cache", folder, model="vit-mini")
    model = prepare(tuning_request("vit-mini", 4), tmp_path / "cache").model_config
    samples, _, _ = training_data(Workload("x", "image-classification", model_config=model, data=data.folder), 9, 0)
    with pytest.raises(ValueError, match=r"3\.jpg"):
        list(samples)
