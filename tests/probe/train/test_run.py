"""Real trainings of tiny models: what was asked is what ran, and every way to fail is told apart."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Environment, Measurement, Outcome, Workload
from autotune.probe.order import LOSSES, Timing, timings
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train.run import OF_TORCHRUN, arguments_of, most_steps, take_variables, trainer_of
from autotune.space.settings.zero import ALONE
from autotune.workload.model.pickling import sent
from autotune.workload.model.user_objects import UserObjects
from tests.makers import cpu, gpu
from tests.probe.probes import MIB, configuration, make_order, measured
from tests.probe.processes import told
from tests.trainers import Numbers, bert

Train = Callable[..., Measurement]


@pytest.fixture
def own(own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Train:
    """`own("nan")`: trains the caller's model with its OwnTrainer, which does so."""

    def train(behaviour: str = "", **fields: Any) -> Measurement:
        return measured(own_host, make_order(tmp_path, environment, behaviour, **fields))

    return train


@pytest.fixture
def gpt2(host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path) -> Train:
    """`gpt2(asked)`: trains a small GPT-2 on 16 random tokens a sample."""

    def train(**fields: Any) -> Measurement:
        workload = workload_of("gpt2-mini", sequence_length=16)
        return measured(host, make_order(tmp_path, environment, **{"workload": workload, **fields}))

    return train


def test_trainings_of_one_process_with_ranks_variables_can_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's: each listens at its port, which only one process of a machine can."""
    order = make_order(tmp_path, cpu(), process_environment=ALONE)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    ports = set()
    for _ in range(3):
        take_variables(order)
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) > 1
    assert ALONE["MASTER_PORT"] not in ports
    assert {name: os.environ[name] for name in ALONE} == {**ALONE, "MASTER_PORT": os.environ["MASTER_PORT"]}
    monkeypatch.setenv(OF_TORCHRUN, "none")  # its agent listens
    take_variables(order)
    assert os.environ["MASTER_PORT"] == ALONE["MASTER_PORT"]


# As asked -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"checkpointing": "full", "precision": "bf16", "optimizer": "adamw_torch_fused", "workers": 2},
        {"checkpointing": "every_2nd", "precision": "bf16_weights", "optimizer": "adafactor", "attention": "eager"},
        {"checkpointing": "full_reentrant", "optimizer": "adamw_bnb_8bit", "threads": 1},
    ],
    ids=lambda settings: settings["checkpointing"],
)
def test_every_value_that_a_cpu_knows_is_really_trained_with(
    gpt2: Train, environment: Environment, settings: dict[str, Any]
) -> None:
    known = {"optimizer": environment.optimizers, "precision": environment.precisions}
    able = {name: value for name, value in settings.items() if not known.get(name, {}).get(value)}
    asked = configuration(2, 2, **able)
    measurement = gpt2(asked=asked)
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert dict(measurement.settings) == dict(measurement.asked) == asked.values
    assert {step.samples for step in measurement.steps} == {4}
    assert {step.tokens for step in measurement.steps} == {64}
    for step in measurement.steps:
        assert step.seconds >= step.data_wait_s + step.first_s + step.last_s - 1e-6
        parts = step.data_wait_s + step.forward_s + step.backward_s + step.optimizer_s + step.overhead_s
        assert parts == pytest.approx(step.seconds)
        assert min(step.forward_s, step.backward_s, step.optimizer_s) > 0
        assert step.non_padding_tokens == step.tokens
    assert measurement.samples_per_second is not None
    assert measurement.peak_bytes is not None
    assert measurement.peak_bytes > 0


def test_what_a_probe_never_does_is_switched_off_whatever_the_arguments_say(own: Train, tmp_path: Path) -> None:
    kept = {"logging_steps": 1, "logging_strategy": "steps", "num_train_epochs": 7, "max_steps": 100000}
    base = {
        **kept,
        **{"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "save_strategy": "steps", "save_steps": 1},
        **{"report_to": "all", "push_to_hub": True, "load_best_model_at_end": True, "auto_find_batch_size": True},
        **{"resume_from_checkpoint": "no-such-checkpoint", "learning_rate": 0.125},
    }
    measurement = own(base=base)
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    trainer = told(tmp_path, "trainer")
    arguments = trainer["arguments"]
    assert arguments["learning_rate"] == 0.125, "what it learns stays the caller's"
    assert trainer["steps"] == measurement.untimed_steps + len(measurement.steps)
    for name in ("eval_strategy", "save_strategy"):
        assert arguments[name] == "no"
    assert arguments.items() >= kept.items(), "the caller's code may read it"
    for name in ("push_to_hub", "load_best_model_at_end", "eval_on_start", "auto_find_batch_size"):
        assert arguments[name] is False
    assert arguments["report_to"] in ([], "none", ["none"])
    assert arguments["resume_from_checkpoint"] is None


@pytest.mark.parametrize("value", ["none", "full"])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_a_model_whose_checkpointing_was_switched_on_by_hand_trains_as_asked(
    environment: Environment, tmp_path: Path, value: str
) -> None:
    def model_init() -> Any:
        model = bert()
        model.gradient_checkpointing_enable()
        return model

    order = make_order(tmp_path, environment, asked=configuration(checkpointing=value))
    objects = UserObjects.opened(sent({"model_init": model_init, "train_dataset": Numbers()}))
    trainer = trainer_of(order, objects, arguments_of(order, b"", tmp_path), most_steps(order))
    assert trainer.model.is_gradient_checkpointing == (value == "full")


# Losses ---------------------------------------------------------------------------------------------------------


def test_rivals_in_a_round_begin_with_the_same_weights_and_learn_alike_unless_something_is_wrong(gpt2: Train) -> None:
    def losses(micro: int, round_number: int = 1, precision: str = "fp32", **base: Any) -> tuple[float, ...]:
        asked = configuration(micro, 8 // micro, precision=precision)
        return gpt2(asked=asked, confirmation=round_number, base=base).losses

    whole, halves, bf16, other = losses(8), losses(4), losses(8, precision="bf16"), losses(8, 2)
    assert len(whole) >= 4
    assert halves[0] == pytest.approx(whole[0], rel=1e-2), "dropout draws other numbers"
    assert bf16[0] == pytest.approx(whole[0], rel=1e-2)
    assert other[0] != whole[0]
    assert halves[3] == pytest.approx(whole[3], rel=1e-2)
    fast = losses(8, learning_rate=1e-2, warmup_steps=500, lr_scheduler_type="cosine")
    assert fast[0] == pytest.approx(whole[0], rel=1e-4)
    assert whole[-1] - fast[-1] > 10 * abs(whole[-1] - bf16[-1]), "a warmup of 500 steps is one of a few"
    assert gpt2(asked=configuration(8, 1)).losses == ()


# Which samples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [cpu(), gpu()], ids=["cpu", "gpu"])
def test_a_training_for_its_losses_draws_from_as_many_samples_as_a_round(device: Environment, tmp_path: Path) -> None:
    def steps(timing: Timing) -> int:
        return most_steps(make_order(tmp_path, device, confirmation=1, timing=timing))

    assert steps(LOSSES) == steps(timings(device.is_cpu)[1])


# Out of memory --------------------------------------------------------------------------------------------------


def test_a_training_held_to_too_little_runs_out_of_memory_and_says_where(gpt2: Train) -> None:
    met: list[Measurement] = []
    for allowed in (5, 30, 60, 400):
        measurement = gpt2(asked=configuration(16), allowed_bytes=allowed * MIB)
        assert measurement.outcome in (Outcome.OUT_OF_MEMORY, Outcome.COMPLETED), measurement.reason
        assert measurement.allowed_bytes == allowed * MIB
        if measurement.outcome is Outcome.OUT_OF_MEMORY:
            assert measurement.where in ("build", "data", "forward", "backward", "optimizer")
            assert measurement.held_bytes is not None
            assert 0 <= measurement.held_bytes <= allowed * MIB
            assert measurement.fits >= 0.01
            assert "memory" in measurement.reason.lower()
        else:
            assert measurement.feasible
            assert measurement.peak_bytes is not None
            assert measurement.peak_bytes <= allowed * MIB
        met.append(measurement)
    ends = [measurement.outcome for measurement in met]
    assert ends == sorted(ends, reverse=True), "more memory never fits less"
    assert (ends[0], ends[-1]) == (Outcome.OUT_OF_MEMORY, Outcome.COMPLETED)
    assert met[0].where == "build"
    assert len({measurement.where for measurement in met if measurement.where}) >= 2
    refused = [measurement.refused_bytes for measurement in met if measurement.outcome is Outcome.OUT_OF_MEMORY]
    assert any(refused)
    for measurement in met:
        if measurement.refused_bytes and measurement.held_bytes:
            assert measurement.held_bytes + measurement.refused_bytes > (measurement.allowed_bytes or 0) * 0.75


def test_an_optimizers_library_that_does_not_fit_is_an_out_of_memory_too(gpt2: Train, environment: Environment) -> None:
    if reason := environment.optimizers["adamw_bnb_8bit"]:
        pytest.skip(reason)
    asked = configuration(16, optimizer="adamw_bnb_8bit", workers=1)
    measurement = gpt2(asked=asked, allowed_bytes=38 * MIB, deadline_s=20.0)
    assert measurement.outcome is Outcome.OUT_OF_MEMORY, f"{measurement.reason}\n{measurement.log_tail}"
    assert measurement.where


@pytest.mark.nightly
def test_the_limit_is_the_training_processes_alone(own: Train) -> None:
    # Each sample takes 120 MiB while it is made, in the worker or in the training process.
    in_worker = own("take memory", asked=configuration(workers=1), allowed_bytes=80 * MIB)
    assert in_worker.outcome is Outcome.COMPLETED, in_worker.reason
    in_training = own("take memory", asked=configuration(workers=0), allowed_bytes=80 * MIB)
    assert (in_training.outcome, in_training.where) == (Outcome.OUT_OF_MEMORY, "data")


def test_an_out_of_memory_of_the_optimizer_is_the_optimizers(own: Train) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    measurement = own("raise in optimizer", asked=configuration(optimizer="sgd"), variables={"BEHAVIOUR_TEXT": text})
    assert (measurement.outcome, measurement.where) == (Outcome.OUT_OF_MEMORY, "optimizer")


# Other ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden by the Trainer", "logged as it is"])
def test_a_loss_that_is_not_a_number_is_no_measurement(own: Train, hidden: bool) -> None:
    measurement = own("nan", asked=configuration(4, 2, logging_nan_inf_filter=hidden))
    assert measurement.settings["logging_nan_inf_filter"] is hidden
    assert (measurement.outcome, measurement.where) == (Outcome.NON_FINITE_LOSS, "forward")
    assert measurement.samples_per_second is None
    assert not measurement.feasible


@pytest.mark.parametrize(
    ("behaviour", "settings", "said"),
    [
        ("twice the batch", {}, "micro_batch_size 4 became 8"),
        ("own optimizer", {"optimizer": "adamw_torch"}, "optimizer adamw_torch became sgd"),
        ("own precision", {"precision": "fp32"}, "precision fp32 became bf16"),
        ("", {"precision": "fp16"}, "precision fp16 became fp32"),
        ("", {"pin_memory": True}, "pin_memory True became False"),
    ],
)
def test_a_training_that_runs_otherwise_than_asked_shows_it(
    own: Train, behaviour: str, settings: dict[str, Any], said: str
) -> None:
    measurement = own(behaviour, asked=configuration(**settings))
    shown = {name: value for name, value in measurement.settings.items() if value is not None}
    assert [f"{n} {measurement.asked[n]} became {shown[n]}" for n in shown if shown[n] != measurement.asked[n]] == [
        said
    ]


@pytest.mark.parametrize(
    ("behaviour", "precision", "shown"),
    [
        ("float64 head", "fp32", "float64 and fp32"),
        ("float64 head", "bf16", "bf16 and float64"),
        ("no layer", "bf16", None),
    ],
)
def test_precision_is_read_from_all_layers_that_run(own: Train, behaviour: str, precision: str, shown: str) -> None:
    assert own(behaviour, asked=configuration(precision=precision)).settings["precision"] == shown


@pytest.mark.parametrize("settings", [{"checkpointing": "full"}, {"precision": "tf32"}])
def test_what_model_or_device_cannot_do_is_unsupported(own: Train, settings: dict[str, Any]) -> None:
    measurement = own(asked=configuration(**settings))
    assert (measurement.outcome, measurement.where) == (Outcome.UNSUPPORTED, "build")
    assert measurement.reason


def test_a_training_that_ends_without_a_timed_step_crashed(own: Train) -> None:
    measurement = own("train nothing")
    assert measurement.outcome is Outcome.CRASHED
    assert measurement.reason == "the training ended without a timed step"
