"""Real sanity checks of tiny models: one evaluation batch, one checkpoint, and every way in which they can fail."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from autotune.commands import tune
from autotune.core import Environment, Outcome, Workload
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck
from autotune.probe.process.answers import attempt
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train import sanity
from autotune.probe.train.memory_limit import memory_of
from autotune.workload.model.pickling import sent
from tests.probe import misbehaviours
from tests.probe.probes import CALLERS, MIB, configuration, make_order

Rehearse = Callable[..., SanityCheck]
FULL = shutil._ntuple_diskusage(100, 99, 1)


class Tied(misbehaviours.Tiny):
    """Two layers with one weight, which the Trainer cannot save."""

    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight


class Stream(torch.utils.data.IterableDataset):
    """64 samples that can only be run through."""

    def __iter__(self) -> Iterator[Any]:
        samples = misbehaviours.Samples()
        return (samples[place] for place in range(len(samples)))


class EvaluatingTrainer(Trainer):
    """Fails in its evaluation as it is told to."""

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if misbehaviours.behaviour() == "evaluation fails":
            raise RuntimeError(os.environ["BEHAVIOUR_TEXT"])
        return super().prediction_step(model, inputs, *args, **kwargs)


def model_init() -> torch.nn.Module:
    if misbehaviours.behaviour() == "disk full":
        shutil.disk_usage = lambda _: FULL
    return Tied() if misbehaviours.behaviour() == "tied" else misbehaviours.Tiny()


EVALUATION: dict[str, Any] = {"eval_dataset": misbehaviours.Samples()}
OBJECTS = {"model_init": model_init, "train_dataset": misbehaviours.Samples(), "trainer_class": EvaluatingTrainer}


@pytest.fixture(scope="module")
def own_host() -> Iterator[ProbeHost]:
    with ProbeHost(sent({**OBJECTS, "evaluation": EVALUATION})) as host:
        yield host


def came_to(answer: tuple[Any, Failure | None]) -> SanityCheck:
    value, failure = answer
    assert failure is None
    return SanityCheck.from_dict(value)


@pytest.fixture
def own(own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Rehearse:
    """`own("tied")`: rehearses a caller's own tiny model, which does so."""

    def rehearse(behaviour: str = "", **fields: Any) -> SanityCheck:
        order = make_order(tmp_path, environment, behaviour, **{"kind": "sanity_check", **fields})
        return came_to(attempt(own_host, order))

    return rehearse


@pytest.fixture
def prepared(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> Rehearse:
    """`prepared("gpt2-mini")`: rehearses a tiny model on synthetic samples."""

    def rehearse(model: str, **fields: Any) -> SanityCheck:
        workload = workload_of(model, **({} if model == "vit-mini" else {"sequence_length": 16}))
        order = make_order(tmp_path, environment, **{"kind": "sanity_check", "workload": workload, **fields})
        return came_to(attempt(host, order))

    return rehearse


# As a real run does it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["bert-mini", "vit-mini"])
def test_one_evaluation_batch_and_one_checkpoint_are_made_at_the_winners_settings(
    prepared: Rehearse, workload_of: Callable[..., Workload], model: str
) -> None:
    sanity_check = prepared(model, asked=configuration(4, 2, workers=1))
    assert sanity_check.problems == ()
    assert (sanity_check.eval_batch_size, sanity_check.eval_batches_tried) == (8, (8,))
    assert sanity_check.eval_seconds is not None
    assert sanity_check.eval_seconds > 0
    workload = workload_of(model, **({} if model == "vit-mini" else {"sequence_length": 16}))
    least = 3 * workload.parameter_bytes  # weights, and AdamW's two averages of their gradients
    assert sanity_check.checkpoint_bytes is not None
    assert least < sanity_check.checkpoint_bytes < 1.1 * least + MIB
    assert sanity_check.checkpoint_seconds is not None
    assert set(sanity_check.peak_bytes) == {"training", "evaluation", "saving"}
    assert min(sanity_check.peak_bytes.values()) > 0
    assert [line.partition(":")[0] for line in sanity_check.lines()] == ["evaluation", "checkpoint"]


@pytest.fixture
def here(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bytes], SanityCheck]]:
    """`here(objects)`: rehearses a caller's own objects in this process; nothing is left of it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("BEHAVIOUR", "")
    order = make_order(tmp_path, environment, kind="sanity_check", process_environment={})
    yield lambda objects: SanityCheck.from_dict(sanity.run(order, objects, scratch))
    assert list(scratch.iterdir()) == []


# What does not fit ----------------------------------------------------------------------------------------------


def test_an_evaluation_that_does_not_fit_is_halved_until_it_does(prepared: Rehearse) -> None:
    limit = 310 * MIB
    sanity_check = prepared("gpt2-mini", base={"per_device_eval_batch_size": 4096}, allowed_bytes=limit)
    assert sanity_check.problems == ()
    tried = sanity_check.eval_batches_tried
    assert len(tried) > 1
    assert tried == tuple(4096 // 2**time for time in range(len(tried)))
    assert sanity_check.eval_batch_size == tried[-1]
    assert sanity_check.peak_bytes["evaluation"] < limit
    assert sanity_check.checkpoint_bytes


def test_an_evaluation_that_fails_otherwise_is_not_halved(own: Rehearse) -> None:
    sanity_check = own("evaluation fails", variables={"BEHAVIOUR_TEXT": "no such column"})
    assert sanity_check.eval_batches_tried == (8,)
    problem = sanity_check.problem("evaluation")
    assert problem is not None
    assert (problem.outcome, problem.reason) == (Outcome.CRASHED, "RuntimeError: no such column")
    assert sanity_check.checkpoint_bytes


def test_a_full_disk_leaves_the_checkpoint_untried_and_says_so(own: Rehearse) -> None:
    sanity_check = own("disk full")
    assert (sanity_check.checkpoint_bytes, sanity_check.problems) == (None, ())
    assert sanity_check.lines()[-1].startswith("checkpoint: not tried: ")
    assert sanity_check.lines()[-1].endswith(" that the disk has free")


def test_a_model_that_cannot_be_saved_is_the_checkpoints_problem(own: Rehearse) -> None:
    sanity_check = own("tied")
    assert sanity_check.eval_batch_size == 8
    assert [(problem.where, problem.outcome) for problem in sanity_check.problems] == [("saving", Outcome.CRASHED)]
    assert sanity_check.lines()[-1].startswith("checkpoint: crashed: RuntimeError")


def test_a_training_that_does_not_fit_is_neither_evaluated_nor_saved(prepared: Rehearse) -> None:
    sanity_check = prepared("gpt2-mini", allowed_bytes=30 * MIB)
    assert [(problem.where, problem.outcome) for problem in sanity_check.problems] == [
        ("training", Outcome.OUT_OF_MEMORY)
    ]
    assert (sanity_check.eval_batches_tried, sanity_check.checkpoint_bytes) == ((), None)
    assert len(sanity_check.lines()) == 1


# Its parts ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_tried_up_to_5_gb_and_half_of_the_free_disk() -> None:
    gigabyte = 10**9
    assert sanity.too_large(5 * gigabyte, 10 * gigabyte) == ""
    assert sanity.too_large(5 * gigabyte, 10 * gigabyte, 26.0) == ""
    assert sanity.too_large(5 * gigabyte, 10 * gigabyte, 24.0) == "5 GB may take longer than the 24 s that are left"
    assert sanity.too_large(31 * gigabyte, 400 * gigabyte) == "31 GB would be more than 5 GB"
    half = "4 GB would be more than half of the 7 GB that the disk has free"
    assert sanity.too_large(4 * gigabyte, 7 * gigabyte) == half


def test_the_longest_samples_are_evaluated_and_any_where_all_are_alike(
    environment: Environment, tmp_path: Path
) -> None:
    order = make_order(tmp_path, environment, workload=replace(CALLERS, longest=(7, 3)))
    assert list(sanity.eval_samples(order, list(range(10)), 5)) == [7, 3, 7, 3, 7]
    alike = replace(order, workload=CALLERS)
    assert list(sanity.eval_samples(alike, list(range(3)), 5)) == [0, 1, 2, 0, 1]
    assert len(sanity.eval_samples(alike, [], 5)) == 0
    assert sanity.eval_samples(alike, (place for place in range(2)), 5) == [0, 1]


class Tabular(Trainer):
    """Evaluates only data that has columns."""

    def evaluate(self, eval_dataset: Any = None, **_: Any) -> Any:
        return eval_dataset.column_names


def test_an_evaluation_that_fails_on_our_selection_of_samples_alone_is_no_problem_of_the_user_s(
    here: Callable[[bytes], SanityCheck],
) -> None:
    sanity_check = here(sent({**OBJECTS, "trainer_class": Tabular}))
    assert (sanity_check.problems, sanity_check.eval_batch_size) == ((), None)


# The user's evaluation ------------------------------------------------------------------------------------------


class Scored(misbehaviours.Tiny):
    """Its evaluation gives 8 scores of 4 bytes for each of its inputs."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(x, labels) | {"logits": self.second(x).detach()}


class ReadsMetrics(TrainerCallback):
    """Reads a metric that only the user's own evaluation has."""

    def on_evaluate(self, *_: Any, metrics: Any = None, **__: Any) -> None:
        names = ("eval_accuracy", "eval_a_accuracy", "eval_b_accuracy")
        assert any(name in metrics for name in names), "no accuracy"


class Endless(EvaluatingTrainer):
    """Evaluates other rows than those that it is given."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return DataLoader([misbehaviours.Samples()[0]] * 1000)


def accuracy(_: Any, lock: Any = None) -> dict[str, float]:
    return {"accuracy": 0.5}


def of_all_rows(_: Any) -> dict[str, float]:
    raise AssertionError("not all rows")


ROWS = misbehaviours.Samples()
CHECKED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # objects, the evaluation's -> why the user's evaluation was not checked
    "metrics that a callback reads": ({}, {"eval_dataset": ROWS, "compute_metrics": accuracy}, ""),
    "several sets": ({}, {"eval_dataset": {"a": ROWS, "b": ROWS}, "compute_metrics": accuracy}, ""),
    "no set": ({}, {}, "your Trainer has no eval_dataset"),
    "what cannot be sent": (
        {},
        {"eval_dataset": ROWS, "compute_metrics": partial(accuracy, lock=threading.Lock())},
        "The compute_metrics cannot be sent to another process: cannot pickle '_thread.lock' object",
    ),
    "metrics that need all rows": (
        {},
        {"eval_dataset": ROWS, "compute_metrics": of_all_rows},
        "its compute_metrics failed on a few rows: AssertionError: not all rows",
    ),
    "other rows": (
        {"trainer_class": Endless},
        {"eval_dataset": ROWS, "compute_metrics": accuracy},
        "it reads other rows than those of its eval_dataset",
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_evaluation_that_is_checked_is_the_user_s_or_none(here: Callable[[bytes], SanityCheck], name: str) -> None:
    objects, evaluation, unchecked = CHECKED[name]
    callbacks = {"model_init": Scored, "callbacks": [ReadsMetrics()]}
    sanity_check = here(sent({**OBJECTS, **callbacks, **objects, "evaluation": evaluation}))
    assert (sanity_check.problems, sanity_check.evaluation_unchecked) == ((), unchecked)
    assert bool(sanity_check.eval_batch_size) is not (name in ("other rows", "metrics that need all rows"))


@pytest.mark.parametrize(
    ("smaller", "row_bytes"), [(None, 8 * 4 + 8 * 4), (lambda logits, _: logits[:, :1], 4 + 8 * 4)]
)
def test_what_an_evaluation_of_all_rows_keeps_is_foretold(
    here: Callable[[bytes], SanityCheck], smaller: Any, row_bytes: int
) -> None:
    metrics = {"compute_metrics": accuracy, "preprocess_logits_for_metrics": smaller}
    sanity_check = here(sent({**OBJECTS, "model_init": Scored, "evaluation": {**EVALUATION, **metrics}}))
    assert sanity_check.outputs_bytes == 2 * len(ROWS) * row_bytes
    assert not sanity_check.keeps_too_much
    assert sanity_check.outputs_left_bytes > 1e8


def test_the_rows_of_an_evaluation_are_spread_over_the_set_with_the_longest_among_them() -> None:
    rows = [torch.zeros(9 if place == 17 else 2) for place in range(100)]
    assert [len(row) for row in sanity.some_rows(rows, 4)] == [9, 2, 2, 2]
    assert list(sanity.some_rows(rows, 4).indices) == [17, 25, 50, 75]
    assert len(sanity.some_rows(rows[:3], 8)) == 3
    assert len(sanity.some_rows(Stream(), 5)) == 5


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:This sequence already has:UserWarning")
def test_trl_s_sft_trainer_evaluates(here: Callable[[bytes], SanityCheck], tmp_path: Path, monkeypatch: Any) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from transformers import ByT5Tokenizer, Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=384, intermediate_size=32, **sizes))
    fields = {"bf16": False, "gradient_checkpointing": False, "max_length": 32}
    args = trl.SFTConfig(
        str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", per_device_train_batch_size=4, **fields
    )
    data = datasets.Dataset.from_dict({"text": [f"paragraph {place} of many" * (1 + place % 3) for place in range(64)]})
    trainer = trl.SFTTrainer(model, args, train_dataset=data, processing_class=ByT5Tokenizer())
    payloads: list[Any] = []
    monkeypatch.setattr(tune, "search", lambda brought, *_, **__: payloads.append(brought))
    tune.tune(trainer)
    sanity_check = here(payloads[0].pickled)
    assert sanity_check.problems == ()
    assert sanity_check.eval_batch_size == 8


def test_steps_that_loss_scaling_left_out_do_not_count(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = make_order(tmp_path, environment)
    check = sanity.SanityCallback(order, memory_of(order), tmp_path)
    accelerator = SimpleNamespace(optimizer_step_was_skipped=True)
    check.trainer = SimpleNamespace(accelerator=accelerator)
    monkeypatch.setattr(check, "_evaluate", lambda: None)
    monkeypatch.setattr(sanity, "checkpoint_size", lambda _: 1)
    control = SimpleNamespace(should_training_stop=False)
    stopped = []
    for skipped in (True, True, False, False):
        accelerator.optimizer_step_was_skipped = skipped
        check.on_step_end(None, None, control)
        stopped.append(control.should_training_stop)
    assert stopped == [False, False, False, True]
