"""Real trainings of a few steps: the same samples whatever the micro-batch, and losses that can be compared."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Environment, Outcome, Trial, Workload
from autotune.core.failures import Failure
from autotune.core.loss_curves import STEPS, Curve, Numerics
from autotune.probe.process.launcher import ProbeHost
from autotune.study.loss_check import check_numerics
from autotune.workload.model.pickling import sent
from tests.makers import completed
from tests.probe import learners
from tests.probe.probes import MIB, configuration, make_order

Train = Callable[..., Curve]
DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def own_host() -> Iterator[ProbeHost]:
    """A host with a model that learns, and a Trainer that tells what it was shown."""
    with ProbeHost(sent(learners.OBJECTS)) as host:
        host.start()
        yield host


@pytest.fixture
def attempt(host: ProbeHost, own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Callable[..., Any]:
    """`attempt(workload=..., asked=...)`: (the answer, the failure) of a numerics order; the learner's where no workload."""

    def attempt(
        behaviour: str = "", *, steps: int = 6, seed: int = 0, folder: Path | None = None, **fields: Any
    ) -> Any:
        request = {"steps": steps, "seed": seed}
        place = folder or tmp_path / "order"
        place.mkdir(parents=True, exist_ok=True)
        fields = {"kind": "numerics", "deadline_s": DEADLINE_S, "request": request, **fields}
        order = make_order(place, environment, behaviour, **fields)
        return (host if "workload" in fields else own_host).attempt(order)

    return attempt


@pytest.fixture
def train(attempt: Callable[..., Any]) -> Train:
    """`train(asked=...)`: the curve."""

    def train(*args: Any, **fields: Any) -> Curve:
        answer, failure = attempt(*args, **fields)
        assert failure is None, failure
        return Curve.from_dict(answer)

    return train


def told(tmp_path: Path) -> list[tuple[int, list[int], float]]:
    """(step, samples, learning rate) of each micro-step of the last training."""
    return [tuple(load) for load in json.loads((tmp_path / "order" / "told").read_text(encoding="utf-8"))]


def samples_of_steps(tmp_path: Path) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for step, samples, _ in told(tmp_path):
        steps.setdefault(step, []).extend(samples)
    return steps


def test_every_split_sees_the_same_samples_in_each_step_and_learns_the_same(train: Train, tmp_path: Path) -> None:
    seen, curves = [], []
    for micro, accumulation, seed in [(8, 1, 0), (2, 4, 0), (1, 8, 0), (4, 2, 1)]:
        curves.append(train(asked=configuration(micro, accumulation), seed=seed, base={"learning_rate": 0.01}))
        seen.append(samples_of_steps(tmp_path))
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert sorted(seen[0]) == list(range(6))
    assert all(len(set(samples)) == 8 for samples in seen[0].values())
    assert curves[1].losses == pytest.approx(curves[0].losses, rel=1e-5), "what 2 x 4 learns is what 8 x 1 learns"
    assert curves[2].losses == pytest.approx(curves[0].losses, rel=1e-5)
    assert abs(curves[3].losses[0] / curves[0].losses[0] - 1) > 1e-3, "another seed has other weights"
    assert curves[0].losses[-1] < curves[0].losses[0]


def test_a_training_comes_out_the_same_again(train: Train) -> None:
    one, two = (train(seed=2, base={"seed": 11, "data_seed": 12}) for _ in range(2))
    assert one == two == train(seed=2)


def test_the_learning_rates_schedule_spans_the_steps(train: Train, tmp_path: Path) -> None:
    train(steps=4, base={"learning_rate": 0.1, "max_steps": 5000, "num_train_epochs": 9})
    assert [rate for _, _, rate in told(tmp_path)] == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize(("model", "times"), [("gpt2-mini", {1}), ("llama-mini", {1}), ("t5-mini", {1, 4})])
def test_a_models_loss_is_the_same_however_the_step_is_split_or_is_added_up(
    train: Train, workload_of: Callable[..., Workload], model: str, times: set[int]
) -> None:
    workload = without_dropout(workload_of(model, sequence_length=16))
    whole, split = (train(asked=configuration(*sizes), workload=workload, steps=3) for sizes in ((4, 1), (1, 4)))
    by = round(split.losses[0] / whole.losses[0])
    assert by in times, "the Trainer adds up the losses of models that drop the number of items it hands them"
    assert [loss / by for loss in split.losses] == pytest.approx(whole.losses, rel=2e-4)


def test_steps_that_were_skipped_are_counted(train: Train) -> None:
    assert train("skip", variables={"BEHAVIOUR_TEXT": "4"}).skipped_steps == 4
    assert train().skipped_steps == 0


def test_a_loss_that_is_not_a_number_comes_back_as_what_it_was(attempt: Callable[..., Any]) -> None:
    answer, failure = attempt("nan", variables={"BEHAVIOUR_TEXT": "2"})
    assert failure is None
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    curve = Curve.from_dict(answer)
    assert curve.non_finite_step == 3
    assert math.isfinite(curve.losses[-1])


def test_a_training_that_ends_too_soon_is_no_curve(attempt: Callable[..., Any]) -> None:
    answer, failure = attempt("stop", variables={"BEHAVIOUR_TEXT": "1"})
    assert answer is None
    assert failure.outcome is Outcome.CRASHED
    assert "ended after 2 of 6 steps" in failure.reason


def test_a_training_held_to_too_little_runs_out_of_memory(
    attempt: Callable[..., Any], workload_of: Callable[..., Workload]
) -> None:
    workload = workload_of("gpt2-mini", sequence_length=16)
    answer, failure = attempt(workload=workload, asked=configuration(16), allowed_bytes=30 * MIB)
    assert answer is None
    assert failure.outcome is Outcome.OUT_OF_MEMORY, failure


def test_weights_that_are_there_are_trained_from(
    train: Train, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    import torch

    from autotune.workload.model.build import build_model

    workload = without_dropout(workload_of("llama-mini", sequence_length=16))
    model = build_model(workload)
    torch.nn.init.zeros_(model.lm_head.weight)  # every token is as likely: the first loss is the same on any sample
    model.save_pretrained(tmp_path / "saved")
    own = replace(workload, weights=str(tmp_path / "saved"))
    first, other = (train(workload=own, steps=2, seed=seed) for seed in (0, 1))
    random, another = (train(workload=workload, steps=2, seed=seed) for seed in (0, 1))
    assert first.losses[0] == pytest.approx(other.losses[0], rel=1e-6)
    assert all(item.losses[0] != pytest.approx(first.losses[0], rel=1e-6) for item in (random, another))
    assert first.losses[1] != other.losses[1], "without dropout a seed still changes the order"


# The whole check, with real trainings -----------------------------------------------------------------------------


@pytest.fixture
def checked(attempt: Callable[..., Any], tmp_path: Path) -> Callable[..., Numerics]:
    """`checked({1: configuration, ...}, workload=...)`: these beside float32 of the baseline 0."""

    def checked(asked: Mapping[int, Configuration], **fields: Any) -> Numerics:
        def one(of: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
            answer: tuple[Any, Failure | None] = attempt(asked=of, seed=seed, steps=STEPS, folder=folder, **fields)
            return answer

        trials = [Trial(number, of, completed(of)) for number, of in asked.items()]
        return check_numerics(trials, list(asked), one, tmp_path / "numerics", "random weights")

    return checked


def test_a_finalist_that_learns_otherwise_is_flagged_and_the_others_are_not(checked: Callable[..., Numerics]) -> None:
    asked = {
        0: configuration(8, 1, precision="bf16"),
        1: configuration(2, 4),
        2: configuration(8, 1, optimizer="sgd"),
        3: configuration(4, 2, optimizer="adamw_torch_fused", workers=1),
    }
    numerics = checked(asked, base={"learning_rate": 0.05})
    assert numerics.problem == ""
    assert {number: bool(numerics.flag(number)) for number in asked} == {0: False, 1: False, 2: True, 3: False}
    assert "standard deviations from fp32's" in numerics.flag(2)
    assert all(numerics.is_checked(number) for number in asked)


@pytest.mark.nightly
def test_sixteen_bits_and_checkpointing_are_not_flagged_on_a_small_gpt2_but_no_learning_is(
    checked: Callable[..., Numerics], workload_of: Callable[..., Workload], environment: Environment
) -> None:
    if reason := environment.precisions["bf16"]:
        pytest.skip(reason)
    asked = {
        0: configuration(4, 1),
        1: configuration(4, 1, precision="bf16", checkpointing="full"),
        2: configuration(2, 2),
        3: configuration(4, 1, optimizer="sgd"),
    }
    numerics = checked(asked, workload=workload_of("gpt2-mini", sequence_length=16), base={"learning_rate": 1e-3})
    assert {number: bool(numerics.flag(number)) for number in asked} == {0: False, 1: False, 2: False, 3: True}


def test_a_masked_model_whose_loss_is_added_up_is_compared_by_its_mean(
    checked: Callable[..., Numerics], workload_of: Callable[..., Workload]
) -> None:
    asked = {0: configuration(4, 1), 1: configuration(2, 2)}
    numerics = checked(asked, workload=without_dropout(workload_of("bert-mini", sequence_length=16)))
    whole, split = numerics.curves[0], numerics.curves[1]
    assert split.losses[0] == pytest.approx(whole.losses[0], rel=0.05)
    # What it learns may differ: the mean of two micro-batches' means is not the mean over all their masked tokens.
    assert split.level == pytest.approx(whole.level, rel=0.1)
    assert numerics.is_checked(1)


def without_dropout(workload: Workload) -> Workload:
    config = {name: 0.0 if "drop" in name and value else value for name, value in workload.model_config.items()}
    return replace(workload, model_config=config)
