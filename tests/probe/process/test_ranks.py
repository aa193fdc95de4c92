"""Several ranks of one probe, as real processes: they train as one, and whatever one of them meets the probe meets."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from autotune.core import Configuration, Environment, Measurement, Outcome, Workload
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck
from autotune.probe.order import Timing
from autotune.probe.process.answers import attempt
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.process.ranks import LastStep, decisive, merge_ranks, merge_values
from autotune.workload.model.build import build_model
from autotune.workload.model.pickling import sent
from tests.makers import MIB, completed, step, warned
from tests.probe import ranked
from tests.probe.probes import SETTINGS, make_order, measured
from tests.probe.processes import told, unchanged

KILLED = "ended by SIGKILL (signal 9), perhaps by the kernel's out-of-memory killer"
DEADLINE_S = 90.0
AT_ONCE_S = 5.0
"""How soon after one rank failed the probe is over, on a busy machine: far from the deadline."""

Run = Callable[..., Measurement]


def on_ranks(ranks: int, micro: int = 4, global_batch_size: int = 8, **settings: Any) -> Configuration:
    return Configuration.exact(global_batch_size, micro, {**SETTINGS, "data_parallel_size": ranks, **settings})


@pytest.fixture(scope="module")
def ranked_host() -> Iterator[ProbeHost]:
    objects = {
        "model_init": ranked.model_init,
        "train_dataset": ranked.Numbered(),
        "trainer_class": ranked.TellingTrainer,
    }
    with ProbeHost(sent(objects)) as host:
        host.start()
        yield host


@pytest.fixture
def run(ranked_host: ProbeHost, environment: Environment, tmp_path: Path) -> Iterator[Run]:
    """`run(configuration, "be killed", rank=1)`: its measurement; afterwards nothing of any rank may be left."""
    shared = set(os.listdir("/dev/shm"))

    def run(asked: Configuration, behaviour: str = "", rank: int = 1, **fields: Any) -> Measurement:
        more = {"deadline_s": DEADLINE_S, "variables": {"FAILING_RANK": str(rank)}, **fields}
        cores = replace(environment, cpu_count=max(2, environment.cpu_count))
        return measured(ranked_host, make_order(tmp_path, cores, behaviour, asked=asked, **more))

    with unchanged(ranked_host):
        yield run
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("torch_")}


# They train as one ----------------------------------------------------------------------------------------------


def test_two_ranks_see_the_global_batch_once_and_step_with_its_gradient(run: Run, tmp_path: Path) -> None:
    measurement = run(on_ranks(2, 1))
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    first, second = told(tmp_path, "rank-0"), told(tmp_path, "rank-1")
    alone = run(on_ranks(1, 8))
    assert alone.outcome is Outcome.COMPLETED, alone.reason
    whole = told(tmp_path, "rank-alone")
    assert first["global_steps"] == second["global_steps"], "no rank stops alone"
    assert len(first["steps"]) == len(second["steps"]) >= 4
    for one, other, both in zip(first["steps"], second["steps"], whole["steps"], strict=False):
        assert len(one["samples"]) == len(other["samples"]) == 4
        assert len({*one["samples"], *other["samples"]}) == 8, "eight different samples a step"
        assert {*one["samples"], *other["samples"]} == set(both["samples"]), "those that one process would take"
        assert one["gradient"] == other["gradient"], "synchronised"
        assert one["gradient"] == pytest.approx(both["gradient"], abs=1e-5), "the whole batch's gradient"


def test_ranks_are_those_of_torchrun_share_the_threads_and_count_the_samples_of_all(
    run: Run, tmp_path: Path, environment: Environment
) -> None:
    measurement = run(on_ranks(2, 4))
    assert (measurement.data_parallel_size, {step.samples for step in measurement.steps}) == (2, {4})
    assert measurement.settings.items() >= {"data_parallel_size": 2, "micro_batch_size": 4}.items()
    seconds = sum(step.seconds for step in measurement.steps)
    assert measurement.samples_per_second == pytest.approx(8 * len(measurement.steps) / seconds)
    for rank in ("0", "1"):
        facts = told(tmp_path, f"rank-{rank}")
        assert facts["variables"] == {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        assert facts["backend"] == "gloo"
        assert facts["threads"] == max(1, environment.threads // 2)


def test_a_hopeless_probe_of_several_ranks_ends_early_and_together(run: Run, tmp_path: Path) -> None:
    long = Timing(untimed_least=1, untimed_most=1, timed_least=30, timed_most=50, seconds=60.0)
    measurement = run(on_ranks(2), timing=long, speed_to_reach=1e9)
    assert (measurement.outcome, measurement.ended_early) == (Outcome.COMPLETED, True)
    assert told(tmp_path, "rank-0")["global_steps"] == told(tmp_path, "rank-1")["global_steps"] < 30


def test_the_losses_of_ranks_are_those_of_one_process_on_the_whole_batch(run: Run) -> None:
    losses = [run(on_ranks(ranks, micro), confirmation=1).losses[:4] for ranks, micro in ((2, 2), (1, 8))]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_ranks_rehearse_an_evaluation_and_a_checkpoint_together(
    ranked_host: ProbeHost, environment: Environment, tmp_path: Path
) -> None:
    order = make_order(tmp_path, environment, asked=on_ranks(2), kind="sanity_check", deadline_s=DEADLINE_S)
    value, failure = attempt(ranked_host, order)
    assert failure is None, failure
    sanity_check = SanityCheck.from_dict(value)
    assert not sanity_check.problems
    assert sanity_check.eval_batch_size == 8
    assert sanity_check.checkpoint_bytes


# They share one model ------------------------------------------------------------------------------------------


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 128}


@pytest.mark.nightly
def test_shards_of_the_first_rank_s_weights_learn_as_copies_do(
    environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    AutoConfig.for_model("llama", **TINY).save_pretrained(tmp_path / "model")
    workload = workload_of(str(tmp_path / "model"), sequence_length=16, task="causal-lm")
    torch.manual_seed(5)
    build_model(workload).save_pretrained(tmp_path / "model")
    workload = replace(workload, weights=str(tmp_path / "model"))
    cores, losses = replace(environment, cpu_count=max(2, environment.cpu_count)), []
    with ProbeHost(sent({"trainer_class": ranked.ShardingTrainer})) as host:
        for fsdp in ("none", "full_shard"):
            fields = {
                "workload": workload,
                "confirmation": 1,
                "deadline_s": DEADLINE_S,
                "base": {"learning_rate": 1e-2},
            }
            (tmp_path / fsdp).mkdir()
            measurement = measured(host, make_order(tmp_path / fsdp, cores, asked=on_ranks(2, fsdp=fsdp), **fields))
            assert (measurement.outcome, measurement.settings["fsdp"]) == (Outcome.COMPLETED, fsdp)
            losses.append(measurement.losses)
    copied, sharded = losses
    assert len(sharded) == len(copied) > 3
    assert sharded == pytest.approx(copied, rel=1e-3)
    assert sharded[-1] < sharded[0]


# One of them fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_out_of_memory_is_an_out_of_memory_at_once(run: Run, tmp_path: Path, rank: int) -> None:
    measurement = run(on_ranks(2), "take memory", rank=rank, allowed_bytes=500 * MIB)
    ended = time.monotonic() - told(tmp_path, "failed")
    assert measurement.outcome is Outcome.OUT_OF_MEMORY, measurement.reason
    assert measurement.reason.startswith(f"rank {rank}: ")
    assert measurement.where == "forward"
    assert measurement.refused_bytes == 1024 * MIB
    assert measurement.held_bytes is not None
    assert measurement.fits > 0
    assert measurement.data_parallel_size == 2
    assert ended < AT_ONCE_S


def test_one_rank_that_is_killed_is_a_crash_that_names_it_at_once(run: Run, tmp_path: Path) -> None:
    measurement = run(on_ranks(2), "be killed", rank=0)
    ended = time.monotonic() - told(tmp_path, "failed")
    assert (measurement.outcome, measurement.reason) == (Outcome.CRASHED, f"rank 0: {KILLED}")
    assert ended < AT_ONCE_S


def test_one_rank_that_raises_is_told_with_its_traceback(run: Run) -> None:
    measurement = run(on_ranks(2), "raise", rank=1)
    assert measurement.outcome is Outcome.CRASHED
    assert measurement.reason.startswith(("rank 1: RuntimeError: this rank is not amused", "rank 0: "))
    assert "this rank is not amused" in measurement.log_tail


# Without processes ----------------------------------------------------------------------------------------------


def test_all_ranks_stop_after_the_step_that_the_first_one_announces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_MEETING", str(tmp_path))
    first = LastStep.of_this_process()
    monkeypatch.setenv("RANK", "1")
    second = LastStep.of_this_process()
    assert (first.decides, second.decides) == (True, False)
    assert not second.reached(5)
    assert first.announce(5) is False, "the others may be a step ahead or behind"
    assert [step for step in range(9) if second.reached(step)] == [7, 8]
    assert first.reached(7)


def test_the_gravest_end_decides_and_among_equals_the_first() -> None:
    done, lost, full = (Failure(kind, "") for kind in (Outcome.COMPLETED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY))
    assert decisive([lost, full]) == 1
    assert decisive([done, lost]) == 1
    assert decisive([lost, lost]) == 0
    assert decisive([Failure(Outcome.MISCONFIGURED, ""), Failure(Outcome.NON_FINITE_LOSS, ""), lost]) == 0


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:51428: Connection reset by peer",
        "DistBackendError: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_a_rank_that_lost_its_connection_does_not_hide_the_one_that_ended(said: str) -> None:
    left, killed = Failure(Outcome.CRASHED, said), Failure(Outcome.CRASHED, "ended by SIGKILL")
    assert decisive([left, killed]) == 1
    assert decisive([killed, left]) == 0
    assert decisive([left, left]) == 0


def test_what_ranks_measured_is_the_first_one_s_steps_and_everybody_s_peaks_warnings_and_joules() -> None:
    one = replace(
        completed(peak_bytes=400 * MIB), joules=10.0, observed_warnings=warned("hot"), stage_peak_bytes={"build": 1}
    )
    two = replace(
        completed(peak_bytes=450 * MIB), joules=11.0, observed_warnings=warned("hot", "busy"), steps=(step(9.0),)
    )
    both = merge_ranks([one, two])
    assert both.steps == one.steps
    assert (both.peak_bytes, both.joules, both.observed_warnings) == (450 * MIB, 21.0, warned("hot", "busy"))
    assert both.stage_peak_bytes == {"build": 1}
    assert merge_ranks([one, replace(two, joules=None)]).joules is None


def test_losses_are_the_mean_of_the_ranks_and_peaks_the_highest() -> None:
    ranks = [completed(losses=(1.0, 2.0)), completed(losses=(3.0, 5.0))]
    assert merge_ranks(ranks).losses == (2.0, 3.5)
    checks = [{"peak_bytes": {"training": 5}, "problems": []}, {"peak_bytes": {"training": 7}, "problems": ["x"]}]
    assert merge_values(checks) == {"peak_bytes": {"training": 7}, "problems": ["x"]}
