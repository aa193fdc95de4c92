"""Programs that others wrote, unmodified, below `autotune run`: their settings, their speeds both ways, and the promise.

python benchmarks/programs.py FOLDER --scripts EXAMPLES: FOLDER gets small models, data and all results; EXAMPLES holds
run_clm.py, run_glue.py, run_summarization.py and run_image_classification.py of transformers. `--libraries PATH:PATH`: folders
with packages that they import and autotune does not need (`pip install --target`); other ones for another `--only`.
`--only NAME`: of these programs alone. Each program is

1. run as it is, with a recorder that writes down the training arguments of every training;
2. searched for, with the built Trainer sent to trials, and with the program started again for each trial: the arguments of the
   first trial of the user's settings are compared with those of 1, field by field;
3. run in turns with its own flags and with the answer's, as the printed command has them: settled steps against the promise.

Needs an idle machine. What is finished is kept in FOLDER, the same command continues.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RECORDER = Path(__file__).parent / "recorder"
WAYS = ("sent", "again")
ROUNDS, UNSETTLED = 2, 5
"""Plain runs of each side; steps of each that are left out."""

OF_A_TRIAL = {
    *(
        "output_dir",
        "run_name",
        "logging_dir",
        "max_steps",
        "disable_tqdm",
        "report_to",
        "push_to_hub",
        "load_best_model_at_end",
    ),
    *(
        "save_strategy",
        "eval_strategy",
        "do_eval",
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "save_steps",
    ),
}
"""Arguments that a trial has otherwise on purpose: nothing of it is written, evaluated or reported."""

NOTES = (
    "Searches of 100 s and 6 trials, alone on the machine. Samples per second, with 95% intervals. Plain runs: medians of the",
    "settled steps of two or three runs in turns, first the ratio, then the speed with the answer. A sent trial has two fields",
    "otherwise on purpose: its learning rate stays constant, and its data are drawn with a seed of their own. TF32 is off on a",
    "CPU, set or not.",
)

SIZES = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "8")
COMMON = (
    *("--output_dir", "out", "--max_steps", "30", "--use_cpu", "True", "--save_strategy", "no", "--report_to", "none"),
    *("--learning_rate", "3e-4", "--weight_decay", "0.01", "--warmup_steps", "3", "--lr_scheduler_type", "cosine"),
    *("--max_grad_norm", "0.5", "--seed", "7", "--logging_steps", "5"),
)
"""Settings that are nobody's default, so that one which is not read shows."""


@dataclass(frozen=True)
class Program:
    """words: of its command, run in a folder that holds the materials. files: its config files. fields: an argument's class."""

    words: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def programs(scripts: Path) -> dict[str, Program]:
    """By name."""
    python = sys.executable

    def example(script: str, *words: str) -> Program:
        return Program((python, str(scripts / script), "--do_train", *words, *SIZES, *COMMON))

    trl = ("--max_length", "64", *SIZES, *COMMON)
    return {
        "run_clm": example(
            "run_clm.py",
            *("--model_name_or_path", "gpt2", "--train_file", "texts.txt", "--block_size", "64"),
        ),
        "run_glue": example(
            "run_glue.py",
            *("--model_name_or_path", "bert", "--train_file", "labelled.csv", "--validation_file", "labelled.csv"),
            *("--max_seq_length", "64", "--optim", "adafactor"),
        ),
        "run_summarization": example(
            "run_summarization.py",
            *("--model_name_or_path", "bart", "--train_file", "summaries.json", "--text_column", "text"),
            *("--summary_column", "summary", "--max_source_length", "96", "--max_target_length", "24"),
            *("--label_smoothing_factor", "0.1"),
        ),
        "run_image_classification": example(
            "run_image_classification.py",
            *("--model_name_or_path", "vit", "--train_dir", "images", "--remove_unused_columns", "False"),
            *("--dataloader_num_workers", "1"),
        ),
        "trl sft": Program(
            ("trl", "sft", "--model_name_or_path", "llama", "--dataset_name", "sft", *trl),
        ),
        "trl sft, LoRA from YAML": Program(
            ("trl", "sft", "--config", "sft.yaml"),
            {
                "sft.yaml": yaml_of(
                    {"model_name_or_path": "llama", "dataset_name": "sft", "use_peft": True, "lora_r": 8}, trl
                )
            },
        ),
        "trl dpo": Program(
            ("trl", "dpo", "--model_name_or_path", "llama", "--dataset_name", "dpo", *trl),
        ),
        "llamafactory-cli": Program(
            ("llamafactory-cli", "train", "llama_factory.yaml"),
            {"llama_factory.yaml": yaml_of(LLAMA_FACTORY, (*SIZES, *COMMON))},
            {"DISABLE_VERSION_CHECK": "1"},
        ),
        "axolotl": Program(
            ("axolotl", "train", "axolotl.yaml", "--launcher", "python"),
            {"axolotl.yaml": yaml_of(AXOLOTL, ())},
            {"AXOLOTL_DO_NOT_TRACK": "1"},
        ),
    }


LLAMA_FACTORY = {
    **{"model_name_or_path": "llama", "stage": "sft", "do_train": True, "finetuning_type": "full"},
    **{
        "dataset": "alpaca",
        "dataset_dir": "alpaca",
        "template": "default",
        "cutoff_len": 64,
        "disable_gradient_checkpointing": True,
        "overwrite_output_dir": True,
    },
}

AXOLOTL = {
    **{"base_model": "llama", "datasets": [{"path": "alpaca/alpaca.json", "ds_type": "json", "type": "alpaca"}]},
    **{
        "sequence_len": 160,
        "excess_length_strategy": "truncate",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "max_steps": 30,
        "output_dir": "out",
    },
    **{
        "optimizer": "adamw_torch",
        "learning_rate": 3e-4,
        "weight_decay": 0.01,
        "warmup_steps": 3,
        "lr_scheduler": "cosine",
    },
    **{"max_grad_norm": 0.5, "seed": 7, "logging_steps": 5, "save_strategy": "no", "bf16": False, "tf32": False},
    **{"dataset_prepared_path": "prepared", "val_set_size": 0, "special_tokens": {"pad_token": "<pad>"}},
}


def yaml_of(values: Mapping[str, Any], flags: Sequence[str]) -> str:
    """A config file with these keys, and with those of the flags."""
    import yaml

    pairs = {name.lstrip("-"): value for name, value in zip(flags[::2], flags[1::2], strict=True)}
    words = {name: value for name, value in pairs.items() if value in ("no", "none")}
    read = {name: float(value) if "e-" in value else yaml.safe_load(value) for name, value in pairs.items()} | words
    return str(yaml.safe_dump({**values, **read}, sort_keys=False))


# Materials


def materials(folder: Path) -> None:
    """Small models with a tokenizer of their own, and data, as the programs read them."""
    import torch
    import transformers as t

    sys.path.insert(0, str(ROOT / "tests" / "data"))
    from python_topics import paragraphs  # type: ignore[import-not-found]

    texts = [text for text in paragraphs() if 8 < len(text.split()) < 200][:1500]
    chosen = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(texts)
    torch.manual_seed(1)
    special = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    bart = {
        **{"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256},
        **{
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "decoder_start_token_id": 0,
            "forced_eos_token_id": 0,
        },
    }
    models = {
        "gpt2": t.GPT2LMHeadModel(t.GPT2Config(n_embd=128, n_layer=2, n_head=2, n_positions=128, **special)),
        "llama": t.LlamaForCausalLM(t.LlamaConfig(max_position_embeddings=256, **small, **special)),
        "bert": t.BertForSequenceClassification(t.BertConfig(max_position_embeddings=128, **small, **special)),
        "bart": t.BartForConditionalGeneration(t.BartConfig(max_position_embeddings=128, **bart, **special)),
        "vit": t.ViTForImageClassification(t.ViTConfig(image_size=32, patch_size=4, num_labels=10, **small)),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        if name != "vit":
            tokenizer.save_pretrained(folder / name)
    t.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "vit")
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    labelled = [{"sentence": text, "label": len(text) % 2} for text in texts]
    summaries = [{"text": text, "summary": " ".join(text.split()[:8])} for text in texts]
    answers = [{"prompt": " ".join(text.split()[:6]), "completion": " ".join(text.split()[6:])} for text in texts]
    rows = {
        "summaries.json": summaries,
        "sft/train.jsonl": [{"text": text} for text in texts],
        "dpo/train.jsonl": [
            {"prompt": row["prompt"], "chosen": row["completion"], "rejected": chosen.choice(answers)["completion"]}
            for row in answers
        ],
        "alpaca/alpaca.json": [
            {"instruction": row["prompt"], "input": "", "output": row["completion"]} for row in answers
        ],
    }
    for name, part in rows.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        lines = "\n".join(map(json.dumps, part))
        path.write_text(json.dumps(part) if name.startswith("alpaca") else lines, encoding="utf-8")
    (folder / "alpaca" / "dataset_info.json").write_text(json.dumps({"alpaca": {"file_name": "alpaca.json"}}))
    import pandas as pd

    pd.DataFrame(labelled).to_csv(folder / "labelled.csv", index=False)
    images(folder / "images")
    metric(folder / "accuracy", "accuracy")
    metric(folder / "rouge", "rouge")
    (folder / "nltk" / "tokenizers" / "punkt_tab").mkdir(parents=True, exist_ok=True)
    (folder / "nltk" / "tokenizers" / "punkt").mkdir(parents=True, exist_ok=True)


def tokenizer_of(texts: Sequence[str]) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(texts, vocab_size=2000, special_tokens=["<eos>", "<pad>"])
    special = {"bos_token": "<eos>", "eos_token": "<eos>", "unk_token": "<eos>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, model_max_length=256, **special)


def images(folder: Path) -> None:
    """Digits as PNG files, a folder a class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 16).clip(0, 255).astype("uint8")).resize((32, 32)).convert("RGB").save(path)


def metric(folder: Path, name: str) -> None:
    """A metric of `evaluate` that needs no download: the share of equal predictions."""
    folder.mkdir(exist_ok=True)
    kind = "int64" if name == "accuracy" else "string"
    (folder / f"{name}.py").write_text(
        "import datasets\nimport evaluate\n\n\nclass Equal(evaluate.Metric):\n    def _info(self):\n"
        f"        features = {{name: datasets.Value({kind!r}) for name in ('predictions', 'references')}}\n"
        "        return evaluate.MetricInfo(description='', citation='', features=datasets.Features(features))\n\n"
        "    def _compute(self, predictions, references):\n"
        f"        return {{{name!r}: sum(a == b for a, b in zip(predictions, references)) / len(predictions)}}\n",
        encoding="utf-8",
    )


# Runs


@dataclass(frozen=True)
class Place:
    """Folder of a program, its command and variables."""

    folder: Path
    program: Program
    libraries: str

    def environment(self, recorded: Path, steps: bool) -> dict[str, str]:
        recorded.mkdir(parents=True, exist_ok=True)
        scripts = [str(Path(sys.executable).parent), *(f"{path}/bin" for path in self.libraries.split(os.pathsep))]
        paths = [str(RECORDER), *filter(None, [self.libraries]), os.environ.get("PYTHONPATH", "")]
        variables = {
            **{"PYTHONPATH": os.pathsep.join(filter(None, paths)), "RECORDED": str(recorded), "HF_HUB_OFFLINE": "1"},
            **{"PATH": os.pathsep.join([*scripts, os.environ["PATH"]]), "NLTK_DATA": str(self.folder / "nltk")},
            **{"HF_HOME": str(self.folder.parent / "hf"), **self.program.variables},
        }
        return {**os.environ, **variables, **({"RECORDED_STEPS": "1"} if steps else {})}

    def run(self, words: Sequence[str], recorded: Path, log: str, steps: bool = False) -> int:
        """Its exit code; what it printed is in the log."""
        with open(self.folder / log, "w", encoding="utf-8") as file:
            return subprocess.run(
                words, cwd=self.folder, env=self.environment(recorded, steps), stdout=file, stderr=subprocess.STDOUT
            ).returncode


def records(folder: Path) -> list[dict[str, Any]]:
    """What the recorder wrote, in the order of time."""
    return sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda facts: facts["begun"])


def different_fields(own: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Arguments of a trial that are not the program's, without those that a trial has otherwise on purpose."""
    names = sorted((own.keys() | trial.keys()) - OF_A_TRIAL)
    return {name: [own.get(name), trial.get(name)] for name in names if own.get(name) != trial.get(name)}


def searched(place: Place, way: str, own: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Facts of one search: what its first trial of the user's settings trained with, the speeds, and the printed command."""
    recorded, output = place.folder / f"recorded-{way}", f"study-{way}"
    words = [sys.executable, "-m", "autotune", "run", "--by", way, "--output-dir", output, "--no-history", "--fresh"]
    code = place.run([*words, *options, "--", *place.program.words], recorded, f"{way}.log")
    studies = [path.parent for path in (place.folder / output).rglob("result.json")]
    if code or not studies:
        tail = (place.folder / f"{way}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
        return {"failed": f"exit code {code}: {' '.join(tail)}"}
    return facts_of(place, studies[0], own, records(recorded))


def facts_of(place: Place, study: Path, own: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from autotune import TuningResult
    from autotune.commands.apply.run import in_command

    result = TuningResult.load(study)
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    same = [each["arguments"] for each in trials if all(each["arguments"][name] == own[name] for name in sizes)]
    applied = in_command(result, place.program.words, place.folder)
    applied.write()
    promised, ratio = result.promised_speed, result.speedup
    return {
        "trials": len(result.trials),
        "different": different_fields(own, same[0]) if same else {"": ["no trial of the user's settings", ""]},
        "baseline": float(result.baseline.samples_per_second or 0.0),
        "promised": [float(promised), promised.low, promised.high],
        "speedup": [float(ratio), ratio.low, ratio.high] if ratio is not None else None,
        "best": result.best.configuration.to_dict(),
        "changes": {name: list(pair) for name, pair in applied.values.items()},
        "command": applied.command,
        "by_hand": list(applied.by_hand),
    }


def speed(record: Mapping[str, Any]) -> float:
    """Samples / second of the settled steps."""
    args, ends = record["arguments"], record["ends"]
    batch = args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
    return float(batch / median(b - a for a, b in zip(ends[UNSETTLED:], ends[UNSETTLED + 1 :], strict=False)))


def in_turns(place: Place, facts: Mapping[str, Any]) -> dict[str, list[float]]:
    """Speeds of plain runs of both commands, in rounds of changing order."""
    import shlex

    commands = {"own": list(place.program.words), "answer": shlex.split(facts["command"])}
    speeds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS):
        for name in sorted(commands, reverse=bool(number % 2)):
            recorded = place.folder / f"recorded-{name}-{number}"
            shutil.rmtree(recorded, ignore_errors=True)
            words = commands[name]
            prefix = ["env"] if words and "=" in words[0].partition("/")[0] else []
            if place.run([*prefix, *words], recorded, f"{name}-{number}.log", steps=True):
                raise SystemExit(f"{shlex.join(words)} failed: see {place.folder / f'{name}-{number}.log'}")
            speeds[name].append(speed(records(recorded)[0]))
    return speeds


def measured(name: str, program: Program, root: Path, libraries: str, options: Sequence[str]) -> dict[str, Any]:
    """All facts of a program; kept in its folder."""
    folder = root / name.replace(" ", "-").replace(",", "")
    kept = folder / "facts.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "materials", folder)
    for file, text in program.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    place = Place(folder, program, libraries)
    print(f"{name}: as it is", flush=True)
    if code := place.run(program.words, folder / "recorded-own", "own.log"):
        tail = (folder / "own.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
        return {"failed": f"the program itself ended with exit code {code}: {' '.join(tail)}"}
    own = records(folder / "recorded-own")[0]
    facts: dict[str, Any] = {"trainer": own["trainer"]}
    for way in WAYS:
        print(f"{name}: {way}", flush=True)
        facts[way] = searched(place, way, own["arguments"], options)
        print(json.dumps(facts[way], indent=1), flush=True)
    answer = next((facts[way] for way in WAYS if facts[way].get("speedup")), None)
    if answer is not None and answer["changes"]:
        print(f"{name}: in turns", flush=True)
        facts["plain"] = in_turns(place, answer)
        print(json.dumps(facts["plain"]), flush=True)
    kept.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return facts


def row(name: str, facts: Mapping[str, Any]) -> str:
    if "failed" in facts:
        return f"| {name} | {facts['failed']} | | | | | |"
    cells = []
    for way in WAYS:
        part = facts[way]
        different = ", ".join(part.get("different", {})) or "none"
        cells.append(part.get("failed", different))
    sent, again = (facts[way].get("baseline", 0.0) for way in WAYS)
    ratio = f"{again / sent:.2f}" if sent and again else "-"
    answer = next((facts[way] for way in WAYS if facts[way].get("speedup")), None)
    promised = plain = "-"
    if answer is not None:
        promised = "{:.2f}x ({:.2f} to {:.2f}), {:.4g} ({:.4g} to {:.4g})".format(
            *answer["speedup"], *answer["promised"]
        )
    if "plain" in facts:
        own, answered = (median(facts["plain"][side]) for side in ("own", "answer"))
        plain = f"{answered / own:.2f}x, {answered:.4g}"
    return f"| {name} | {facts['trainer']} | {' | '.join(cells)} | {ratio} | {promised} | {plain} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scripts", type=Path, default=Path("examples"))
    parser.add_argument("--libraries", default="")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--options", default="--timeout 100s --n-trials 6")
    parser.add_argument("--report", type=Path, default=ROOT / "reports" / "programs.md")
    arguments = parser.parse_args()
    root = arguments.folder.absolute()
    if not (root / "materials").exists():
        materials(root / "materials")
    lines = [
        "| program | Trainer | fields read otherwise, sent | again | own speed, again / sent | promised | plain runs |",
        "| --- | --- | --- | --- | ---: | --- | --- |",
    ]
    for name, program in programs(arguments.scripts.absolute()).items():
        if not arguments.only or name in arguments.only:
            facts = measured(name, program, root, arguments.libraries, arguments.options.split())
            lines.append(row(name, facts))
            print(lines[-1], flush=True)
    write_table(arguments.report, "Programs of others below `autotune run`", [*lines, "", *NOTES])


if __name__ == "__main__":
    main()
