"""What is known before the first probe of a real model: its memory, what this device can do, and what was before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Environment, Trial, Workload
from autotune.core.request import tuning_request
from autotune.core.time_limit import TimeLimit
from autotune.judge.standing import Standing
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.probe.order import UNTOUCHED_BYTES
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import known_rates
from autotune.sampler.calibration import KNOWN, Calibration
from autotune.sampler.prior import Learned
from autotune.sampler.warm_start import WarmStart
from autotune.space.build import build_space
from autotune.space.search_space import SearchSpace
from autotune.space.settings import Context, CostChange, WorkFactors
from autotune.space.utilization import Arithmetic, SampleFlops
from autotune.study import warm_start
from autotune.study.loop import open_study
from autotune.study.plan import Plan, Progress, ProgressKind
from autotune.study.store import read_peaks
from autotune.study.warm_start import (
    AHEAD_CORES,
    TRACED,
    _needs,
    build_warm_start,
    estimated_peaks,
    keeping_peaks,
    padding,
    trace_ahead,
    warm_up,
)
from tests.hurry import RECORDED_HOST
from tests.makers import MIB, completed, cpu, gpu, space, space_file, standing_of, trial, workload

SPACE = """
parameters:
  micro_batch_size: divisors
  checkpointing: [none, full]
  precision: [fp32, bf16]
  optimizer: [adamw_torch, adamw_bnb_8bit]
  workers: [0, 2]
"""
OPTIMIZERS = ("adamw_torch", "adamw_bnb_8bit")
PLAN = Plan(n_trials=2, objective="samples_per_second", allowed_bytes=10**9)
PAST = Calibration(
    {"precision": {"fp32": KNOWN, "bf16": Learned(CostChange(-0.5, 0.0, 3.0), CostChange(0.01, 0.1, 3.0))}}, 50.0 * MIB
)


@pytest.fixture(scope="module")
def made(
    host: ProbeHost,
    environment: Environment,
    workload_of: Callable[..., Workload],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[SearchSpace, WarmStart]:
    workload = workload_of("bert-mini", global_batch_size=8, sequence_length=32)
    path = space_file(tmp_path_factory.mktemp("space"), SPACE)
    request = tuning_request("bert-mini", 8, sequence_length=32, device="cpu", space=path)
    space = build_space(request, environment, workload, {})
    return space, build_warm_start(host, environment, workload, space, {}, 10**9)


def test_every_configuration_has_an_estimate_that_grows_with_its_micro_batch(
    made: tuple[SearchSpace, WarmStart],
) -> None:
    space, knowledge = made
    assert knowledge.estimate is not None
    for item in space:
        own = knowledge.estimate(item)
        assert 30 * MIB < own < 1000 * MIB
        # Without accumulation the gradients are freed before the next forward: less memory than with two micro-batches.
        larger = [
            other
            for other in space
            if other.settings == item.settings
            and item.micro_batch_size < other.micro_batch_size < space.global_batch_size
        ]
        assert all(knowledge.estimate(other) >= own for other in larger)


def test_the_estimate_of_a_trial_says_what_its_memory_is_for(made: tuple[SearchSpace, WarmStart]) -> None:
    space, knowledge = made
    assert knowledge.allowed_bytes == 10**9 - UNTOUCHED_BYTES, "what a CPU training reserves without touching it"
    found = estimated_peaks(knowledge, [Trial(0, space.baseline, completed(space.baseline))])
    assert knowledge.estimate is not None
    assert found[0].device_bytes == knowledge.estimate(space.baseline)
    assert found[0].split.total == found[0].device_bytes, "a CPU has neither a context nor an allocator's rest"
    assert found[0].split.weights > MIB
    assert found[0].split.activations > MIB


def test_what_an_optimizers_library_takes_is_measured_and_estimated(
    environment: Environment, made: tuple[SearchSpace, WarmStart]
) -> None:
    if reason := environment.optimizers["adamw_bnb_8bit"]:
        pytest.skip(reason)
    taken = environment.optimizer_bytes["adamw_bnb_8bit"]
    assert 5 * MIB < taken < 300 * MIB
    assert "adamw_torch" not in environment.optimizer_bytes, "torch is there in every training"
    space, knowledge = made
    assert knowledge.estimate is not None
    plain, other = (space.configuration({**space.baseline.values, "optimizer": name}) for name in OPTIMIZERS)
    # Its states are smaller than AdamW's by less than its library is large.
    assert knowledge.estimate(plain) - 100 * MIB < knowledge.estimate(other) - taken < knowledge.estimate(plain)


@pytest.mark.nightly
def test_what_cannot_be_traced_is_estimated_as_the_same_training_without_it(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload]
) -> None:
    workload = workload_of("llama-mini", global_batch_size=8, sequence_length=32)
    baseline = Configuration.exact(8, 2, {"checkpointing": "none", "lora": "none", "quantization": "none"})
    among = space(baseline, (4,), checkpointing=("none",), lora=("none", "8"), quantization=("none", "nf4"))
    knowledge = build_warm_start(host, environment, workload, among, {}, 10**9)
    assert knowledge.estimate is not None
    values = {"micro_batch_size": 4, "checkpointing": "none", "lora": "8", "quantization": "none"}
    adapter, whole = (among.configuration({**values, "lora": rank}) for rank in ("8", "none"))
    packed = among.configuration({**values, "quantization": "nf4"})
    found = estimated_peaks(knowledge, [Trial(0, adapter, completed(adapter)), Trial(1, packed, completed(packed))])
    assert set(found) == {0}, "nothing is said of what weights in four bits are for"
    assert knowledge.estimate(packed) == found[0].device_bytes
    assert knowledge.estimate(packed) < knowledge.estimate(whole) - 2 * workload.parameter_bytes
    assert knowledge.prior.effects["quantization"]["nf4"].peak_bytes < 0


def test_what_is_expected_comes_from_the_past(tmp_path: Path) -> None:
    study = open_study(tmp_path, space(precision=("fp32", "bf16")), PLAN)
    study.ledger.trials.append(trial(0))
    with RECORDED_HOST() as host:
        warm_up(study, host, Context(cpu(), workload()), [PAST])
    learned = study.warm_start.prior.learned["precision"]["bf16"]
    assert learned.deviation.micro_step == pytest.approx(-0.4, abs=0.1)


def test_what_is_expected_comes_else_from_the_settings(made: tuple[SearchSpace, WarmStart]) -> None:
    prior = made[1].prior
    assert prior.work["checkpointing"]["full"] == pytest.approx((4 / 3, 4 / 3, 1.0))
    assert prior.work["workers"] == {0: WorkFactors(), 2: WorkFactors()}
    assert 0.1 < prior.half_speed < 100, "a small model on a CPU: a few samples keep it busy"


def test_a_callers_own_model_has_no_estimate(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], made: tuple[SearchSpace, WarmStart]
) -> None:
    workload = replace(workload_of("bert-mini", global_batch_size=8, sequence_length=32), user_objects=True)
    assert build_warm_start(host, environment, workload, made[0], {}, 2**20).allowed_bytes == 1, "less than is reserved"
    found = build_warm_start(host, environment, workload, made[0], {}, 10**9)
    assert found.estimate is None
    assert not estimated_peaks(found, [Trial(0, made[0].baseline, completed(made[0].baseline))])
    assert found.unknown.startswith("A model of your own")
    assert found.prior.effects == {}


def test_the_device_is_measured_once_and_remembered(
    host: ProbeHost, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = replace(environment, precisions={"fp32": None}, optimizers={"adamw_torch": None})
    rates = known_rates(host, environment)
    assert set(rates) == {"fp32", "adamw_torch"}
    assert all(10**6 < rate < 10**16 for rate in rates.values())
    assert known_rates(host, environment) == rates, "from the file: a second measurement would differ"
    next((tmp_path / "autotune" / "rates").iterdir()).write_text("{")
    assert set(known_rates(host, environment)) == set(rates)
    assert known_rates(host, replace(environment, device="cuda:7", precisions={"tf32": None})) == {}


def test_what_is_traced_begins_with_what_is_near_the_baseline() -> None:
    among = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2))
    needed = _needs(among)
    assert [(item.values["checkpointing"], item.values["precision"]) for item in needed[1:]] == [
        ("none", "fp32"),
        ("full", "fp32"),
        ("none", "bf16"),
        ("full", "bf16"),
    ]
    assert {item.micro_batch_size for item in needed[1:]} == {8}
    assert {item.values["workers"] for item in needed} == {0}, "workers take the host's memory, not what is traced"


def test_of_a_large_space_no_more_combinations_are_made_than_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def combined(_: SearchSpace, __: Sequence[str]) -> Iterator[Configuration]:
        for number in range(TRACED):
            yield Configuration.exact(8, 8, {"checkpointing": f"every_{number}th"})
        raise AssertionError("the space has millions")

    monkeypatch.setattr(warm_start, "_combined", combined)
    assert len(_needs(space())) == 1 + TRACED


def test_estimated_peaks_are_written_as_soon_as_a_trial_is_known(tmp_path: Path) -> None:
    peak, seen = MemoryPeak(MemorySplit(1, 2, 3, 4, 5, 6), 20, "optimizer step"), list[Progress]()
    study = open_study(tmp_path, space(), PLAN, WarmStart(10**9, peak=lambda configuration: peak))
    watch = keeping_peaks(seen.append, study)
    study.ledger.standing = standing_of([trial(0)])
    watch(Progress(ProgressKind.PROBING, Standing()))
    assert not read_peaks(tmp_path)
    watch(Progress(ProgressKind.TRIAL, Standing()))
    assert read_peaks(tmp_path) == {0: peak}
    assert [item.kind for item in seen] == ["probing", "trial"]


def test_where_no_time_is_left_for_a_probe_nothing_is_estimated(tmp_path: Path) -> None:
    study = open_study(tmp_path, space(), replace(PLAN, time=TimeLimit(10.0)))
    study.ledger.standing = standing_of([trial(0, probe_seconds=30.0)])
    with RECORDED_HOST() as host:
        assert warm_up(study, host, Context(cpu(), Workload("bert", "masked-lm"))) == []
        assert host.orders == []


SEVERAL_CORES = gpu(cpu_count=AHEAD_CORES)


@pytest.mark.parametrize("sampler", ["physics", "tpe"])
def test_the_traces_of_a_search_on_a_gpu_are_begun_before_its_baseline_and_not_made_again(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no rates are known from another test
    study, context = open_study(tmp_path, space(), replace(PLAN, sampler=sampler)), Context(SEVERAL_CORES, workload())
    with RECORDED_HOST() as host, ExitStack() as stack:
        traces = trace_ahead(study, host, context, stack)
        assert traces is not None
        traces()
        assert [order.kind for order in host.orders] == ["trace"]
        study.ledger.standing = standing_of([trial(0)])
        warm_up(study, host, context, traces=traces)
        assert [order.kind for order in host.orders] == ["trace", "rates"]


@pytest.mark.parametrize(
    ("environment", "facts", "plan", "trials"),
    [
        (cpu(cpu_count=64), {}, {}, []),
        (gpu(cpu_count=AHEAD_CORES - 1), {}, {}, []),
        (SEVERAL_CORES, {"user_objects": True}, {}, []),
        (SEVERAL_CORES, {}, {"n_trials": 1}, []),
        (SEVERAL_CORES, {}, {}, [trial(0)]),
    ],
)
def test_nothing_is_traced_beside_a_baseline_that_it_would_disturb_or_if_nothing_needs_it(
    environment: Environment, facts: dict[str, Any], plan: dict[str, Any], trials: list[Trial], tmp_path: Path
) -> None:
    study = open_study(tmp_path, space(), replace(PLAN, **plan))
    study.ledger.standing = standing_of(trials)
    with RECORDED_HOST() as host, ExitStack() as stack:
        assert trace_ahead(study, host, Context(environment, workload(**facts)), stack) is None
        assert host.orders == []


EVENLY = tuple(step / 100 for step in range(101))
LINEAR, SQUARED = Arithmetic({"": SampleFlops(2.0, 1.0)}), Arithmetic({"": SampleFlops(4.0, 1.0)})


@pytest.mark.parametrize(
    ("lengths", "base", "values", "arithmetic", "share"),
    [
        ((), {}, {}, LINEAR, 1.0),
        (EVENLY, {}, {}, LINEAR, 0.8),
        (EVENLY, {}, {}, Arithmetic(), 0.8),
        (EVENLY, {}, {}, SQUARED, 0.64),
        (EVENLY, {}, {"batching": "group_by_length"}, LINEAR, 0.5),
        (EVENLY, {"train_sampling_strategy": "group_by_length"}, {}, LINEAR, 0.5),
        (EVENLY, {"train_sampling_strategy": "group_by_length"}, {"batching": "random"}, LINEAR, 0.8),
        (EVENLY, {}, {"packing": "flattening"}, LINEAR, 0.5),
        (EVENLY, {}, {"packing": "none"}, LINEAR, 0.8),
    ],
)
def test_a_sample_costs_what_its_batch_is_padded_to(
    lengths: Any, base: Any, values: Any, arithmetic: Arithmetic, share: float
) -> None:
    padded = padding(workload(lengths=lengths), base, arithmetic)
    assert padded(Configuration.exact(8, 4, values)) == pytest.approx(share, abs=1e-3)
