"""What people type wrong, as one table: the command, the exit code it must end with, and the word that its message must name.

Rows with exit code 0 are inputs that look wrong and are fine. `write_files` makes every file that the rows name.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.probe.order import ANSWER

DEEP = "[" * 100_000 + "]" * 100_000
"""Text of the files that are nested too deeply."""

FINE = 0
WRONG = 2


@dataclass(frozen=True)
class BadInput:
    """One command. names: what the message must contain, in any case; for_real: also run as a process with the real host."""

    what: str
    arguments: tuple[str, ...]
    names: str
    code: int = WRONG
    for_real: bool = False


def search(what: str, names: str, *arguments: str, model: str = "gpt2-mini", **more: Any) -> BadInput:
    """A row of `autotune search`, small enough that the fine ones take a moment."""
    small = ("--global-batch-size", "8", "--device", "cpu", "--sequence-length", "32", "--n-trials", "1")
    space = ("--search-space", "quick", "--only", "precision=fp32", "--no-history")
    return BadInput(what, ("search", model, *small, *space, *arguments), names, **more)


def images(what: str, names: str, *arguments: str, model: str = "vit-mini", **more: Any) -> BadInput:
    """A row of a search for a model of images, which has no sequence length."""
    small = "--global-batch-size 2 --device cpu --n-trials 1 --search-space quick --no-history"
    return BadInput(what, ("search", model, *small.split(), *arguments), names, **more)


def classified(what: str, names: str, *arguments: str, **more: Any) -> BadInput:
    """A row of a search for a classifier of text."""
    task = ("--task", "sequence-classification", "--global-batch-size", "4")
    return search(what, names, *task, *arguments, model="bert-mini", **more)


def estimate(what: str, names: str, *arguments: str, model: str = "gpt2-mini", **more: Any) -> BadInput:
    """A row of `autotune estimate`."""
    return BadInput(what, ("estimate", model, "--global-batch-size", "8", *arguments), names, **more)


def command(what: str, names: str, *arguments: str, **more: Any) -> BadInput:
    """A row of any command, as it is written."""
    return BadInput(what, arguments, names, **more)


# Options ---------------------------------------------------------------------------------------------------------------

OPTIONS = (
    search("a global batch of zero", "--global-batch-size", "--global-batch-size", "0", for_real=True),
    search("a huge global batch", "--global-batch-size", "--global-batch-size", "99999999", for_real=True),
    search("a global batch of 1", "", "--global-batch-size", "1", code=FINE),
    search("a global batch with an underscore", "", "--global-batch-size", "1_6", code=FINE),
    search("no trials", "--n-trials", "--n-trials", "0", for_real=True),
    search("a negative seed", "seed", "--seed", "-1", for_real=True),
    search("a sequence longer than the model takes", "--sequence-length", "--sequence-length", "5000", for_real=True),
    search("a sequence length of images", "--sequence-length", model="vit-mini"),
    search("an unknown task", "causal-lm", "--task", "casual-lm", for_real=True),
    search("a task that the model has not", "image-classification", "--task", "image-classification"),
    search("an unknown space", "quick", "--search-space", "quik"),
    search("a space that is a folder", "search space", "--search-space", "data"),
    search("an unknown device", "device", "--device", "gpu"),
    search("more devices than cores", "--devices 1000", "--devices", "1000"),
    search(
        "more ranks than devices", "more ranks than", "-b", "1024", "--only", "data_parallel_size=1024", for_real=True
    ),
    search("an unknown logger", "tensorboard", "--report-to", "tensorbord"),
    search("headroom of everything", "headroom", "--headroom", "100%"),
    search("a memory limit of zero", "--memory-limit", "--memory-limit", "0"),
    search("a memory limit beyond any number", "--memory-limit", "--memory-limit", "1e999"),
    search("a memory limit above the device", "memory limit", "--memory-limit", "900TiB", for_real=True),
    search("a memory limit below the model", "--memory-limit", "--memory-limit", "20MiB", code=3, for_real=True),
    search("an unknown setting to fix", "precision", "--fix", "precison=bf16"),
    search("an unknown value to fix", "adamw_torch", "--fix", "optimizer=adamw_trch"),
    search("a fix said twice", "checkpointing", "--fix", "checkpointing=none", "--fix", "checkpointing=full"),
    search("fix against only", "precision", "--fix", "precision=fp32"),
    search("a micro-batch that does not divide", "micro_batch_size", "--fix", "micro_batch_size=3"),
    search("weights of four bits without an adapter", "quantization", "--fix", "quantization=nf4"),
    search("ranks that do not divide", "rank", "--fix", "data_parallel_size=16"),
    search("what the device cannot do", "fp16", "--only", "precision=fp16", "--search-space", "default", for_real=True),
    search("a column without data", "--text-column", "--text-column", "text"),
    search("a study name that is too long", "study", "--study-name", "x" * 300),
    search("a report folder without a name", "--output-dir", "--output-dir", "", for_real=True),
    search("a report folder that is a file", "--output-dir", "--output-dir", "afile"),
    search("a report folder with a blank and an umlaut", "", "--output-dir", "meine Läufe", code=FINE),
    search("an option of nothing known", "--n-trails", "--n-trails", "5"),
    search("more trials than anybody waits for", "--n-trials", "--n-trials", "9" * 23),
    search("a time limit of a century", "30 days", "--timeout", "1000000h"),
    command("no model", "For example: autotune search gpt2-mini", "search", "--global-batch-size", "8"),
    command("an unknown command", "serach", "serach", "gpt2-mini"),
)

# TrainingArguments -----------------------------------------------------------------------------------------------------

TRAINING_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown optimizer": ({"optim": "adam_magic"}, "adam_magic"),
    "a learning rate that is no number": ({"learning_rate": float("nan")}, "learning_rate"),
    "an unknown scheduler": ({"lr_scheduler_type": "cosin"}, "cosin"),
    "a scheduler without what it needs": ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr"),
    "a field that there is none of": ({"learning_rat": 1e-4}, "learning_rate"),
    "a micro-batch of zero": ({"per_device_train_batch_size": 0}, "per_device_train_batch_size"),
    "sizes that contradict": ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}, "4 x 4 = 16"),
    "emptying the cache at no step": ({"torch_empty_cache_steps": 0}, "torch_empty_cache_steps"),
    "a plateau without evaluation": ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "eval"),
    "a DeepSpeed file that is missing": ({"deepspeed": "none.json"}, "none.json"),
    "options of accelerate that there are none of": ({"accelerator_config": {"speed": 2}}, "speed"),
}

ARGUMENT_FILES = (
    *(
        search(f"training arguments with {what}", names, "--args", f"args/{what}.json")
        for what, (_, names) in TRAINING_ARGUMENTS.items()
    ),
    search("no file of training arguments", "none.json", "--args", "none.json", for_real=True),
    search("training arguments that are a folder", "data", "--args", "data"),
    search("training arguments cut in two", "cut.json", "--args", "args/cut.json"),
    search("training arguments that are an image", "image.json", "--args", "args/image.json"),
    search("deep training arguments", "deep.json", "--args", "args/deep.json", for_real=True),
    search("training arguments that include a tag", "tag.yaml", "--args", "args/tag.yaml"),
    search("a whole dump of defaults", "", "--args", "args/dump.json", code=FINE),
    search("a learning rate of 5e-5 in YAML", "", "--args", "args/exponent.yaml", code=FINE),
)

# Models ----------------------------------------------------------------------------------------------------------------

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no hidden size": ({"hidden_size": 0}, "hidden_size"),
    "no positions": ({"max_position_embeddings": 0}, "max_position_embeddings"),
    "heads that do not divide": ({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": None}, "heads"),
    "an unknown model type": ({"model_type": "lama"}, "llama"),
    "code of its own": (
        {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}},
        "--trust-remote-code",
    ),
    "a million layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    "sizes of trillions": ({"hidden_size": 2**21, "intermediate_size": 2**21}, "billion parameters"),
}


def safetensors(size: int = 8) -> bytes:
    """A file of safetensors with one tensor of 8 bytes, of which so many are there."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(size)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"
SHARDS = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "w": "model-00002-of-00002.safetensors"}})
WEIGHTS: dict[str, tuple[dict[str, bytes], str]] = {
    "that are cut off": ({"model.safetensors": safetensors(4)}, "weights/that are cut off/model.safetensors"),
    "that are text": ({"model.safetensors": b"not weights at all, but text\n"}, "model.safetensors cannot be loaded"),
    "that are pointers": ({"model.safetensors": LFS}, "git lfs pull"),
    "of pickle that are pointers": ({"pytorch_model.bin": LFS}, "git lfs pull"),
    "of pickle that are cut off": ({"pytorch_model.bin": b"PK\x03\x04" + bytes(100)}, "pytorch_model.bin"),
    "of which a part is missing": (
        {"model.safetensors.index.json": SHARDS.encode(), "model-00001-of-00002.safetensors": safetensors()},
        "model-00002-of-00002.safetensors cannot be loaded: it is missing",
    ),
    "whose index is damaged": ({"model.safetensors.index.json": b'{"weight_map": '}, "index.json"),
}
"""What folders of weights hold that cannot be loaded."""

WHOLE_WEIGHTS: dict[str, dict[str, bytes]] = {
    "in one file, and an index that nobody reads": {
        "model.safetensors": safetensors(),
        "model.safetensors.index.json": SHARDS.encode(),
    },
    "in parts": {
        "model.safetensors.index.json": SHARDS.encode(),
        "model-00001-of-00002.safetensors": safetensors(),
        "model-00002-of-00002.safetensors": safetensors(),
    },
}

NO_MODELS: dict[str, tuple[dict[str, bytes], str]] = {
    "an adapter": ({"adapter_config.json": b'{"base_model_name_or_path": "org/base"}'}, "Name org/base, with"),
    "a GGUF file": ({"model-Q4.gguf": b"GGUF"}, "GGUF"),
}
"""What folders without a config hold."""

MODELS = (
    *(
        search(f"weights {what}", names, model=f"weights/{what}", for_real=what == "that are cut off")
        for what, (_, names) in WEIGHTS.items()
    ),
    *(search(f"weights {what}", "", model=f"weights/{what}", code=FINE) for what in WHOLE_WEIGHTS),
    *(search(f"{what} as model", names, model=f"weights/{what}") for what, (_, names) in NO_MODELS.items()),
    search("a GGUF file itself", "cannot be trained", model="weights/a GGUF file/model-Q4.gguf"),
    *(
        search(
            f"a config with {what}",
            names,
            model=f"models/{what}.json",
            code=3 if "trillions" in what else WRONG,
            for_real=what == "no positions",
        )
        for what, (_, names) in CONFIGS.items()
    ),
    search("an unknown model", "gpt2-mini", model="gpt2-minii", for_real=True),
    search("an unknown model of somebody", "nobody/nothing", model="nobody/nothing"),
    search("a model that is missing", "./none", model="./none"),
    search("a folder without a config", "config.json", model="data", for_real=True),
    search("a text as model", "data/prose.txt", model="data/prose.txt", for_real=True),
    search("a deep config", "deep.json", model="models/deep.json", for_real=True),
    search("a model's name that is too long", "model", model="x" * 5000),
    search("a link as model", "https://", model="https://huggingface.co/gpt2"),
    search("a model of speech", "task", model="models/speech.json"),
    search("a folder with a blank and an umlaut", "", model="models/große Modelle", code=FINE),
)

# Data ------------------------------------------------------------------------------------------------------------------

DATA = (
    search("data that are missing", "data/none.txt", "--dataset", "data/none.txt", for_real=True),
    search("an empty text", "empty.txt", "--dataset", "data/empty.txt", for_real=True),
    search("a parquet without rows", "no rows", "--dataset", "data/norows.parquet", for_real=True),
    search("a parquet cut in two", "cut.parquet", "--dataset", "data/cut.parquet"),
    search("a JSON lines cut in two", "cut.jsonl", "--dataset", "data/cut.jsonl"),
    search("an unknown kind of data", "data/book.pdf", "--dataset", "data/book.pdf"),
    search("an empty folder of data", "emptyfolder", "--dataset", "emptyfolder", for_real=True),
    search("a folder of two kinds", "data", "--dataset", "data/mixed"),
    search("a dataset of nobody", "nobody/nothing", "--dataset", "nobody/nothing"),
    search("a saved folder that is broken", "data/broken", "--dataset", "data/broken"),
    search("data that are smaller than a batch", "batch of 8", "--dataset", "data/two.txt", for_real=True),
    search("a text column that is missing", "'body'", "--dataset", "data/reviews.csv", "--text-column", "body"),
    search("a text column of numbers", "'stars'", "--dataset", "data/reviews.csv", "--text-column", "stars"),
    search("two text columns", "--text-column", "--dataset", "data/pairs.csv"),
    search("a text column of nulls", "no", "--dataset", "data/nulls.jsonl", "--text-column", "text"),
    search("a split that is missing", "'test'", "--dataset", "data/prose.txt", "--dataset-split", "test"),
    search("a slice beyond the data", "", "--dataset", "data/prose.txt", "--dataset-split", "train[:99999]", code=FINE),
    search("a sum of splits", "", "--dataset", "data/splits", "--dataset-split", "train[:50%]+test", code=FINE),
    search("a folder with blanks and umlauts", "", "--dataset", "data/große Texte", code=FINE),
    search("data with line breaks of Windows", "", "--dataset", "data/windows.txt", code=FINE),
    search("data with a zero in its name", "--dataset", "--dataset", "data\0.txt"),
    classified(
        "a label column that is missing", "'stars2'", "--dataset", "data/reviews.csv", "--label-column", "stars2"
    ),
    classified("labels that are null", "'label'", "--dataset", "data/unlabelled.jsonl", for_real=True),
    classified("no labels", "--label-column", "--dataset", "data/prose.txt"),
    classified("labels of fractions", "", "--dataset", "data/fractions.csv", code=FINE),
    search(
        "tags of fractions",
        "'tags'",
        *["--task", "token-classification", "--dataset", "data/tags.jsonl", "--label-column", "tags"],
        model="bert-mini",
    ),
    search(
        "questions without answers",
        "question",
        *["--task", "question-answering", "--dataset", "data/reviews.csv"],
        model="bert-mini",
    ),
    search(
        "a translation into numbers",
        "'stars'",
        *["--dataset", "data/reviews.csv", "--text-column", "text", "--label-column", "stars"],
        model="t5-mini",
    ),
    images("pictures that are texts", "data/fakes", "--dataset", "data/fakes"),
    images("pictures without labels", "--label-column", "--dataset", "data/flat"),
    images("pictures", "", "--dataset", "data/images", code=FINE),
    search("a folder without a tokenizer", "tokenizer", "--dataset", "data/prose.txt", "--tokenizer", "emptyfolder"),
    search(
        "a tokenizer that is broken", "tokenizer", "--dataset", "data/prose.txt", "--tokenizer", "models/badtokenizer"
    ),
    search(
        "a tokenizer larger than the vocabulary",
        "vocabulary",
        *["--dataset", "data/prose.txt", "--tokenizer", "models/tokenizer"],
        model="models/small.json",
    ),
    search("a vocabulary too small for bytes", "--tokenizer", "--dataset", "data/prose.txt", model="models/small.json"),
)

# Search spaces ---------------------------------------------------------------------------------------------------------

SPACES: dict[str, tuple[str, str]] = {
    "an unknown setting": ("parameters:\n  precison: [fp32]\n", "precision"),
    "nothing": ("", "empty"),
    "a tag": ("parameters: !!python/object/apply:os.getcwd []\n", "YAML"),
    "an anchor of itself": ("parameters: &a\n  precision: *a\n", "precision"),
    "deep brackets": (f"parameters: {DEEP}", "deep"),
    "an impossible date": ("parameters:\n  workers: [2020-13-45]\n", "month"),
}

SPACE_FILES = (
    *(
        search(f"a space with {what}", names, "--search-space", f"spaces/{what}.yaml", for_real=what == "deep brackets")
        for what, (_, names) in SPACES.items()
    ),
    search("a space that is missing", "none.yaml", "--search-space", "none.yaml"),
    search("a space in another encoding", "latin.yaml", "--search-space", "spaces/latin.yaml"),
)

# Studies ---------------------------------------------------------------------------------------------------------------

STUDIES = (
    command("a report of no study", "nowhere", "report", "nowhere", for_real=True),
    command("an answer of no study", "nowhere", "apply", "nowhere", "config.yaml"),
    command("a report in two formats", "--format", "report", "nowhere", "--json", "--format", "csv"),
    command("a report of a damaged study", "damaged", "report", "damaged"),
    command("a report of a deep study", "deep", "report", "deep", for_real=True),
    command("a report of a study without its machine", "lonely", "report", "lonely"),
    command("no study to verify", "nowhere", "verify", "nowhere", for_real=True),
    command("no study to explain", "nowhere", "explain", "nowhere"),
    command("two prices", "prices", "compare", "nowhere", "--price-per-hour", "1", "--price-per-hour", "2"),
    search("a study that is damaged", "damaged", "--study-name", "damaged", code=1),
)

# Estimate, guide and doctor --------------------------------------------------------------------------------------------

OTHERS = (
    estimate("an estimate for no card", "H100", "--gpu", "H1000"),
    estimate("an estimate for two devices", "--memory", "--gpu", "H100", "--memory", "24GiB"),
    estimate("an estimate for ranks given twice", "--ranks", "--ranks", "2", "--fix", "data_parallel_size=2"),
    estimate("an estimate for a card that is a CPU", "--gpu", "--gpu", "H100", "--device", "cpu"),
    estimate("an estimate of a missing model", "./none", model="./none", for_real=True),
    command("a guide of a batch of three", "multiple of 4", "guide", "gpt2-mini", "--global-batch-size", "3"),
    command("a guide of no model", "./none", "guide", "./none", for_real=True),
    command("a guide of missing data", "none.txt", "guide", "gpt2-mini", "--dataset", "none.txt", "--device", "cpu"),
    command("a doctor of no device", "device", "doctor", "--device", "gpu"),
)

ROWS: tuple[BadInput, ...] = (
    *(*OPTIONS, *ARGUMENT_FILES, *MODELS, *DATA),
    *(*SPACE_FILES, *STUDIES, *OTHERS),
)


# The files -------------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> None:
    """Make every file that the rows name, below this folder."""
    for name in ("args", "models", "data", "spaces", "emptyfolder", "reports"):
        (folder / name).mkdir(parents=True)
    (folder / "afile").write_text("a file\n")
    _write_arguments(folder / "args")
    _write_models(folder / "models")
    for kinds, has_config in ((WEIGHTS, True), (NO_MODELS, False)):
        for what, (files, _) in kinds.items():
            _write_model(folder / "weights" / what, files, has_config)
    for what, files in WHOLE_WEIGHTS.items():
        _write_model(folder / "weights" / what, files)
    _write_texts(folder / "data")
    _write_tables(folder / "data")
    _write_pictures(folder / "data")
    for what, (text, _) in SPACES.items():
        (folder / "spaces" / f"{what}.yaml").write_text(text)
    (folder / "spaces" / "latin.yaml").write_bytes("description: größer\nparameters: {}\n".encode("latin-1"))
    _write_studies(folder / "reports")


def _write_arguments(folder: Path) -> None:
    for what, (fields, _) in TRAINING_ARGUMENTS.items():
        (folder / f"{what}.json").write_text(json.dumps(fields))
    texts = {
        "cut.json": '{"learning_rate": ',
        "deep.json": '{"optim_args": ' + DEEP + "}",
        "tag.yaml": "optim: !!python/object/apply:os.getcwd []\n",
        "exponent.yaml": "learning_rate: 5e-5\nmax_grad_norm: 1\noptim: sgd\n",
        "dump.json": json.dumps({"learning_rate": 5e-5, "optim": "adamw_torch_fused", "deepspeed": None, "debug": []}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "image.json").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")


def _write_models(folder: Path) -> None:
    for what, (fields, _) in CONFIGS.items():
        (folder / f"{what}.json").write_text(json.dumps(LLAMA | fields))
    texts = {
        "cut.json": '{"model_type": "llama", ',
        "deep.json": DEEP,
        "speech.json": json.dumps({"model_type": "whisper"}),
        "small.json": json.dumps(LLAMA | {"vocab_size": 64}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "große Modelle").mkdir()
    (folder / "große Modelle" / "config.json").write_text(json.dumps(LLAMA))
    (folder / "badtokenizer").mkdir()
    (folder / "badtokenizer" / "tokenizer.json").write_text('{"version": ')
    _save_tokenizer(folder / "tokenizer")


def _write_model(folder: Path, files: Mapping[str, bytes], has_config: bool = True) -> None:
    folder.mkdir(parents=True)
    if has_config:
        (folder / "config.json").write_text(json.dumps(LLAMA))
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<end>": 1} | {f"word{number}": number + 2 for number in range(100)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)


def _write_texts(folder: Path) -> None:
    prose = [f"the {number}th sentence of a text that is long enough to learn from" for number in range(200)]
    lines = "\n".join(prose) + "\n"
    (folder / "große Texte").mkdir()
    for name in ("prose.txt", "große Texte/prosa ü.txt"):
        (folder / name).write_text(lines)
    (folder / "windows.txt").write_bytes(lines.replace("\n", "\r\n").encode())
    (folder / "two.txt").write_text("\n".join(prose[:2]))
    texts = {
        "empty.txt": "",
        "cut.jsonl": '{"text": "one"}\n{"text": "tw',
        "book.pdf": "%PDF-1.7",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "splits").mkdir()
    for name in ("train.txt", "test.txt"):
        (folder / "splits" / name).write_text(lines)
    (folder / "mixed").mkdir()
    (folder / "mixed" / "a.txt").write_text(lines)
    (folder / "mixed" / "b.csv").write_text("text\nhello\n")


def _write_tables(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [f"a review of the {number}th thing, which was good" for number in range(40)]
    tables: dict[str, Callable[[int], dict[str, Any]]] = {
        "reviews.csv": lambda number: {"text": texts[number], "stars": number % 5},
        "pairs.csv": lambda number: {"one": texts[number], "two": texts[-number]},
        "numbers.csv": lambda number: {"one": number, "two": number / 2},
        "fractions.csv": lambda number: {"text": texts[number], "label": number / 7},
        "unlabelled.jsonl": lambda number: {"text": texts[number], "label": None},
        "nulls.jsonl": lambda number: {"text": None, "label": None},
        "tags.jsonl": lambda number: {"tokens": texts[number].split(), "tags": [0.5] * 9},
    }
    for name, row in tables.items():
        rows = [row(number) for number in range(40)]
        if name.endswith(".jsonl"):
            text = "".join(json.dumps(row) + "\n" for row in rows)
        else:
            lines = [
                ",".join(rows[0]),
                *(
                    ",".join(f'"{item}"' if isinstance(item, str) else str(item) for item in row.values())
                    for row in rows
                ),
            ]
            text = "\n".join(lines) + "\n"
        (folder / name).write_text(text)
    table = pyarrow.table({"text": texts})
    pyarrow.parquet.write_table(table, folder / "whole.parquet")
    (folder / "cut.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:200])
    pyarrow.parquet.write_table(table.slice(0, 0), folder / "norows.parquet")
    (folder / "broken").mkdir()
    (folder / "broken" / "dataset_info.json").write_text("{}")


def _write_pictures(folder: Path) -> None:
    from PIL import Image

    for name in ("images/cat", "images/dog", "flat"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / name / f"{number}.png")
    for kind in ("cat", "dog"):
        (folder / "fakes" / kind).mkdir(parents=True)
        (folder / "fakes" / kind / "a.png").write_text("no picture")


def _write_studies(folder: Path) -> None:
    for name, text in (("damaged", '{"request": '), ("deep", DEEP), ("lonely", "{}")):
        (folder / name / "probes" / "0000").mkdir(parents=True)
        (folder / name / "probes" / "0000" / ANSWER).write_text("{}")  # else there is nothing to lose
        (folder / name / "request.json").write_text(text)


def snapshot(folder: Path) -> Iterator[tuple[str, int]]:
    """(path, size) of every file below the folder: the same before and after what was refused."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "cache" not in path.relative_to(folder).parts:
            yield str(path.relative_to(folder)), path.stat().st_size
