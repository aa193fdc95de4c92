"""What is pasted means the answer: to Python, to a shell, to HfArgumentParser."""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser, TrainingArguments
from typer.main import get_command

from autotune.cli.app import app
from autotune.commands.result import TuningResult
from autotune.core import Trial, Workload
from autotune.core.request import OPTIONS, TuningRequest, tuning_request
from autotune.report.snippets import Snippet, collator_text, script_lines, search_command, snippets
from autotune.study.result import SearchResult
from tests.makers import configuration, out_of_memory, result, trial, with_setup, workload
from tests.report.exports.answers import FULL, PLAIN
from tests.trainers import installed

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")

ODD: dict[str, Any] = {
    "run_name": "a 'name' with $HOME and \"quotes\"",
    "optim_target_modules": ["q proj", "v_proj"],
    "accelerator_config": {"non_blocking": True},
    "liger_kernel_config": {"rope": True},
    "learning_rate": 5e-5,
}
ANSWERS = pytest.mark.parametrize("answer", [installed(FULL), installed(PLAIN | ODD)], ids=["full", "odd"])
NAMED = workload(name="org/gpt2", source="org/gpt2")


def result_with(answer: dict[str, Any], **parts: Any) -> SearchResult:
    return with_setup(result(workload=NAMED), training_arguments=answer, **parts)


def form(study: SearchResult, name: str) -> Snippet:
    return next(snippet for snippet in snippets(study) if snippet.name == name)


def values_of(arguments: TrainingArguments, answer: dict[str, Any]) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in answer} | {"optim": arguments.optim.value}
    if "accelerator_config" in values:
        values["accelerator_config"] = {"non_blocking": values["accelerator_config"].non_blocking}
    return values


@ANSWERS
def test_python_makes_the_same_arguments(answer: dict[str, Any]) -> None:
    tree = ast.parse(form(result_with(answer), "python").text)
    names: dict[str, Any] = {}
    tree.body = tree.body[:2]  # what follows needs the model's weights
    exec(compile(tree, "pasted", "exec"), names)
    assert values_of(names["arguments"], answer) == answer


@ANSWERS
def test_a_shell_hands_hf_argument_parser_the_same_arguments(answer: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "your_script.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pasted = form(result_with(answer, process_environment={"NAME": "a value"}), "command")
    done = subprocess.run(
        ["bash", "-c", pasted.text],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        check=True,
        timeout=300,
    )
    without_flag = [name for name in ("optim_target_modules", "liger_kernel_config") if name in answer]
    flagged = {name: value for name, value in answer.items() if name not in without_flag}
    parser = HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
    (arguments,) = parser.parse_args_into_dataclasses(json.loads(done.stdout))
    assert values_of(arguments, flagged) == flagged
    assert not without_flag or f"No flag takes {', '.join(without_flag)}: set it in the script." in pasted.note


def test_four_bits_are_a_class_of_their_own() -> None:
    study = result_with(PLAIN, model_arguments={"quantization_config": {"load_in_4bit": True}})
    text = form(study, "python").text
    assert "from transformers import AutoModelForCausalLM\nfrom transformers import BitsAndBytesConfig\n" in text
    assert "quantization = BitsAndBytesConfig(load_in_4bit=True)\n" in text
    assert "from_pretrained(\n    'org/gpt2',\n    quantization_config=quantization,\n)" in text


def test_a_model_that_no_name_loads_is_a_comment_and_no_answer_has_no_form() -> None:
    for of in (workload(), workload(name="Net", source="model_init", task="custom", user_objects=True)):
        study = with_setup(result(workload=of), model_arguments={"attn_implementation": "sdpa"})
        assert not any("from_pretrained" in snippet.text + snippet.note for snippet in snippets(study))
        assert "\n# your model, made with attn_implementation='sdpa'" in form(study, "python").text
        ast.parse(form(study, "python").text)
    of_it = configuration()
    assert snippets(result([Trial(0, of_it, out_of_memory(of_it))])) == []


def script(of: Workload, **settings: str) -> list[str]:
    """Lines for a script of an answer of these settings, without those that read the arguments."""
    trials = [trial(0, confirmed=10.0), trial(1, 20.0, of=configuration(16, **settings), confirmed=20.0)]
    lines = script_lines("reports/study", result(trials, workload=of))
    ast.parse("\n".join(lines))
    return lines[4:]


@pytest.mark.parametrize(
    "settings", [{}, {"attention": "flash_attention_2", "precision": "bf16_weights"}, {"quantization": "nf4"}], ids=str
)
def test_the_model_s_lines_fit_eighty_columns(settings: dict[str, str]) -> None:
    long_name = workload(name="org/a-model-whose-name-is-long", source="org/a-model-whose-name-is-long")
    named, built_in = script(long_name, **settings), script(workload(), **settings)
    assert all(len(line) <= 76 for line in (*named, *built_in))
    assert named[0] == "from transformers import AutoModelForCausalLM"
    assert bool(built_in) is bool(settings), "a config alone makes the plain model"
    assert all(line.startswith("# ") for line in built_in)


@pytest.mark.parametrize(
    ("task", "arguments", "text"),
    [
        ("causal-lm", {"packing": True}, "DataCollatorWithFlattening()"),
        ("question-answering", {"pad_to_multiple_of": 8}, "DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)"),
        ("masked-lm", {"pad_to_multiple_of": 8}, "DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=8)"),
        ("causal-lm", {"packing": False, "pad_to_multiple_of": None}, ""),
    ],
)
def test_the_collator_is_named_where_it_is_not_the_usual_one(task: str, arguments: dict[str, Any], text: str) -> None:
    assert collator_text(task, arguments) == text


def test_the_collator_of_the_script_leaves_out_a_mask_that_hides_nothing() -> None:
    names: dict[str, Any] = {}
    exec("\n".join(script(workload(), attention_mask="where_needed")), names)
    row = {"input_ids": [1, 2], "attention_mask": [1, 1]}
    assert names["data_collator"]([row]).keys() == {"input_ids"}
    assert names["data_collator"]([row, {**row, "attention_mask": [1, 0]}]).keys() == row.keys()
    assert script(workload(), attention_mask="always") == []
    padded = script(workload(), attention_mask="where_needed", padding="64")
    assert "def data_collator(samples, collate=data_collator):  # or yours" in padded, "it keeps the other collator"


WISHES: dict[str, Any] = {
    "task": "causal-lm",
    "sequence_length": 64,
    "dataset": "my rows/a&b.csv",
    "dataset_split": "train[:50%]",
    "text_column": "the text",
    "label_column": "-stars",
    "tokenizer": "org/words",
    "space": "spaces/mine.yaml",
    "fix": {"precision": "bf16", "workers": "2"},
    "only": {"optimizer": ("adamw_torch", "sgd")},
    "device": "cpu",
    "devices": "all",
    "cores_per_device": 2,
    "executor": "ray",
    "allow_unauthenticated": True,
    "memory_limit": "1234567890B",
    "headroom": "12.5%",
    "n_trials": 7,
    "timeout": "1234567.5s",
    "probe_timeout": "90s",
    "confirmation_rounds": 5,
    "sampler": "tpe",
    "margin": "0.25%",
    "training_steps": 1234567,
    "no_history": True,
    "no_risk": True,
    "keep_numerics": True,
    "objective": "tokens_per_second",
    "seed": 12,
    "require_parity": True,
    "allow_loss_difference": True,
    "trust_remote_code": True,
    "output_dir": "/data/my reports",
    "study_name": "mine",
    "report_to": "tensorboard,mlflow",
}
"""A value of every option that is not its default."""


def request_of(command: str) -> TuningRequest:
    """The request that a command line means, as `autotune search` reads it."""
    program, *words = shlex.split(command)
    assert program == "autotune"
    group = get_command(app)
    with group.make_context("autotune", words) as context:
        name, of_it, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        assert name == "search"
        with of_it.make_context(name, rest, parent=context) as inner:
            options = inner.params
    return tuning_request(**{name: options[name] for name in ("model", "global_batch_size", *OPTIONS)} | {"args": {}})


def test_there_is_a_wish_for_every_option() -> None:
    assert WISHES.keys() == {*OPTIONS} - {"args", "fresh"}


@pytest.mark.parametrize("name", [*WISHES, "model"])
def test_the_printed_search_asks_for_what_the_user_asked_for(name: str) -> None:
    needed = {"dataset": "rows.csv"} if name in ("dataset_split", "text_column", "label_column", "tokenizer") else {}
    given = {"model": "/home/ann/my models/mine", "global_batch_size": 12, **needed}
    request = tuning_request(**given | ({} if name == "model" else {name: WISHES[name]}))
    command = search_command(result(request=request))
    assert request_of(command) == request
    more = search_command(result(request=request), n_trials=99, timeout=5400.0)
    assert request_of(more) == replace(request, n_trials=99, timeout_s=5400.0)


def test_the_user_s_own_words_are_printed_where_they_are_known_but_for_what_changes_and_fresh() -> None:
    words = ["search", "/home/ann/mine", "-b", "48", "--n-trials=3", "--args", "/home/ann/my args.yaml", "--fresh"]
    typed = replace(result(), command=(*words, "--timeout", "90s", "--output-dir", "rW", "--report-to", "mlflow"))
    command = search_command(typed, n_trials=20, timeout=180.0)
    assert command == (
        "autotune search /home/ann/mine -b 48 --args '/home/ann/my args.yaml' --output-dir rW --report-to mlflow "
        "--n-trials 20 --timeout 3m"
    )
    assert "--fresh" not in search_command(typed)


def test_a_report_s_command_shows_no_folder_and_is_no_command_for_another_place(tmp_path: Path) -> None:
    request = tuning_request("/home/ann/models/mine.json", 48, output_dir="/home/ann/reports", study_name="first")
    folder = result(request=request).save(tmp_path / "reports" / "first")
    again = TuningResult.load(folder)
    assert shlex.split(search_command(again))[2:] == [
        *("…/mine.json", "--global-batch-size", "48"),
        *("--output-dir", "…/reports", "--study-name", "first"),
    ]
    assert again.request.model_name == request.model_name == "mine"


def test_a_study_that_was_moved_is_searched_on_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = result(request=tuning_request("gpt2-mini", 48, device="cpu", output_dir="rT", study_name="w"))
    made.save("rT/w")
    shutil.copytree("rT/w", "rF/other")
    shutil.copytree("rT/w", "reports/w")
    stayed, copied, renamed = (search_command(TuningResult.load(place)) for place in ("rT/w", "reports/w", "rF/other"))
    for command, place, name in ((stayed, "rT", "w"), (copied, "", "w"), (renamed, "rF", "other")):
        words = shlex.split(command)
        assert words[words.index("--study-name") + 1] == name
        assert ("--output-dir" in words and words[words.index("--output-dir") + 1]) == (place or False)
