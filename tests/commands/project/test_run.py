"""Projections: each part of a step on several ranks, by hand; what is refused; text and JSON that call it a projection."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.project.links import LINKS, find_link
from autotune.commands.project.run import Limit, Projection, configuration_on
from autotune.commands.project.text import limit_sentence, projection_lines
from autotune.commands.result import TuningResult
from autotune.core import Configuration, Measurement, Step, Trial, Value
from autotune.core.errors import InvalidRequest
from autotune.memory.peak import MemoryPeak, MemorySplit
from tests.makers import MIB, completed, configuration, gpu, refusal_of, result, trial, workload

GRADIENTS = 100_000_000
ONE = {"link": 1.0}
"""1 GB/s: 100 MB take 0.1 s at best, 0.25 s at least."""


def measured(of: Configuration, micro_s: float = 0.3, optimizer_s: float = 0.1, spread: float = 0.0) -> Measurement:
    """Forward takes a third of a micro-step; each micro-step waits 10 ms for its data; the Trainer takes 20 ms of a step."""
    count = of.gradient_accumulation_steps
    steps = []
    for number in range(6):
        micro = micro_s * (1 + spread * (-1) ** number)
        seconds = count * (micro + 0.01) + optimizer_s + 0.02
        steps.append(
            Step(
                seconds,
                data_wait_s=0.01 * count,
                first_s=micro,
                middle_s=micro,
                last_s=micro + optimizer_s,
                optimizer_s=optimizer_s,
                samples=of.global_batch_size,
                tokens=0,
                forward_s=count * micro / 3,
                backward_s=count * micro * 2 / 3,
            )
        )
    return replace(completed(of), steps=tuple(steps))


def study(of: Configuration, *others: Trial, work: Any = None, **facts: Any) -> TuningResult:
    """A study of one GPU whose answer is its baseline."""
    answer = Trial(0, of, facts.pop("measurement", None) or measured(of))
    work = work or workload(gradient_bytes=GRADIENTS, parameter_bytes=GRADIENTS)
    return result([answer, *others], environment=gpu(), workload=work, **facts)


EIGHT = study(configuration(6))
"""6 x 8: a step of 8 x 0.31 + 0.12 = 2.6 s."""


# What ranks train ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("micro", "accumulation", "ranks", "sizes"),
    [
        (8, 4, 2, (8, 2)),
        (8, 4, 4, (8, 1)),
        (8, 4, 8, (4, 1)),  # no accumulation is left to shrink
        (8, 3, 2, (6, 2)),  # 12 samples of each rank
        (8, 1, 2, (4, 1)),
        (1, 8, 8, (1, 1)),
    ],
)
def test_accumulation_shrinks_and_if_it_cannot_the_micro_batch(
    micro: int, accumulation: int, ranks: int, sizes: tuple[int, int]
) -> None:
    single = Configuration.exact(micro * accumulation, micro, {"precision": "bf16"})
    of_ranks = configuration_on(ranks, single)
    assert of_ranks is not None
    assert (of_ranks.micro_batch_size, of_ranks.gradient_accumulation_steps) == sizes
    assert of_ranks.global_batch_size == single.global_batch_size
    assert of_ranks.values["precision"] == "bf16"


def test_ranks_that_do_not_divide_the_global_batch_are_left_out_with_a_note() -> None:
    projection = study(Configuration.exact(6, 3, dict(configuration().settings))).project(**ONE, ranks=3)
    assert [run.ranks for run in projection.runs] == [2, 3]
    projection = study(Configuration.exact(6, 3, dict(configuration().settings))).project(**ONE, ranks=4)
    assert [run.ranks for run in projection.runs] == [2]
    assert projection.notes == ["4 ranks do not divide a global batch of 6"]


# The parts of a step -------------------------------------------------------------------------------------------------


def test_a_step_on_two_ranks_is_the_sum_of_its_parts() -> None:
    (run,) = EIGHT.project(**ONE, ranks=2).runs
    # All of the exchange is hidden behind the last backward, and the wait is halved; or neither is.
    assert run.sent_bytes == GRADIENTS
    assert run.step_s.low == pytest.approx(4 * 0.31 + 0.1 + 0.01)
    assert run.step_s.high == pytest.approx(4 * 0.3 + 8 * 0.01 + 0.1 + 0.02 + 0.25)
    assert run.speedup == pytest.approx((2.6 / run.step_s.high, 2.6 / run.step_s.low))
    assert run.efficiency == pytest.approx((run.speedup.low / 2, run.speedup.high / 2))
    assert run.samples_per_second == pytest.approx((48 / run.step_s.high, 48 / run.step_s.low))
    assert run.limit is Limit.EXCHANGE


def test_what_the_last_backward_does_not_hide_of_the_exchange_is_added() -> None:
    slow = EIGHT.project(link=0.1, ranks=2).runs[0]
    assert slow.step_s.low == pytest.approx(4 * 0.31 + 0.1 + 0.01 + (1.0 - 0.2))


def test_the_optimizer_limits_where_the_link_is_fast() -> None:
    run = study(configuration(6), measurement=measured(configuration(6), optimizer_s=2.0)).project("nvlink4").runs[-1]
    assert run.limit is Limit.OPTIMIZER
    assert run.lost_s[Limit.OPTIMIZER] == pytest.approx(2.0 * 7 / 8)
    assert "optimizer's step" in limit_sentence(run)


def test_ranks_wait_for_the_slowest_by_the_spread_of_the_steps() -> None:
    steady, jumping = (
        study(configuration(6), measurement=measured(configuration(6), spread=spread)).project("nvlink4", 2).runs[0]
        for spread in (0.0, 0.2)
    )
    assert steady.lost_s[Limit.SLOWEST_RANK] == 0
    assert jumping.lost_s[Limit.SLOWEST_RANK] == pytest.approx(8 * 0.06 / math.sqrt(6))


def test_the_speed_s_own_interval_is_part_of_the_projected_one() -> None:
    answer = study(configuration(6), measurement=measured(configuration(6), spread=0.05))
    (run,) = answer.project("nvlink4", ranks=2).runs
    speed = answer.best.samples_per_second
    assert speed is not None
    assert run.samples_per_second == pytest.approx((speed.low * run.speedup.low, speed.high * run.speedup.high))
    assert speed.low < speed < speed.high


def test_nothing_limits_where_nothing_is_lost() -> None:
    facts = {"data_wait_s": 0.0, "optimizer_s": 0.0, "seconds": 2.4}
    steps = tuple(replace(step, **facts) for step in measured(configuration(6)).steps)
    measurement = replace(measured(configuration(6)), steps=steps)
    run = study(configuration(6), measurement=measurement).project("nvlink5").runs[-1]
    assert run.limit is None
    assert run.efficiency == pytest.approx((1.0, 1.0), abs=0.01)
    assert "no part" in limit_sentence(run)


def test_a_smaller_micro_batch_has_the_time_that_the_cost_model_learned() -> None:
    """The one of half the size was measured, at 0.6 of the time of the whole."""
    whole, half = configuration(48), configuration(24)
    shorter = Trial(1, half, measured(half, micro_s=0.18), disqualified_reason="for the cost model")
    (run,) = study(whole, shorter).project("nvlink5", ranks=2).runs
    assert run.configuration.micro_batch_size == 24
    assert run.step_s.low < 0.18 + 0.13 < run.step_s.high
    assert run.step_s.high / run.step_s.low < 1.6
    (wider,) = study(whole).project("nvlink5", ranks=2).runs
    assert wider.step_s.high / wider.step_s.low > run.step_s.high / run.step_s.low


def test_bytes_are_those_of_the_gradients_own_dtype() -> None:
    def sent(work: Any = None, fsdp: str = "none", **settings: Value) -> float:
        return study(configuration(6, **settings), work=work).project(**ONE, ranks=4, fsdp=fsdp).runs[-1].sent_bytes

    assert sent() == 1.5 * GRADIENTS
    assert sent(precision="bf16") == 1.5 * GRADIENTS
    assert sent(precision="bf16_weights") == 0.75 * GRADIENTS
    own = workload(gradient_bytes=GRADIENTS, parameter_bytes=GRADIENTS, weights_dtype="bfloat16")
    assert sent(own, precision="bf16_weights") == 1.5 * GRADIENTS
    # Two micro-steps: weights twice or once in each, gradients once.
    assert sent(fsdp="full_shard") == 0.75 * GRADIENTS * 5
    assert sent(fsdp="shard_grad_op") == 0.75 * GRADIENTS * 3
    assert sent(fsdp="full_shard", precision="bf16") == 0.75 * GRADIENTS * 5 / 2


def test_fsdp_hides_its_exchange_behind_all_micro_steps_and_divides_the_optimizer() -> None:
    (run,) = EIGHT.project(**ONE, ranks=2, fsdp="full_shard").runs
    assert run.step_s.low == pytest.approx(4 * 0.31 + 0.05 + 0.01)
    assert run.step_s.high == pytest.approx(4 * 0.3 + 8 * 0.01 + 0.1 + 0.02 + 0.45 / 0.4)


def test_an_adapter_s_gradients_are_those_of_the_memory_estimate() -> None:
    adapted = configuration(6, lora="16")
    assert "how many bytes" in refusal_of(lambda: study(adapted).project(**ONE))
    peak = MemoryPeak(MemorySplit(gradients=3 * MIB, optimizer_states=8 * MIB), 500 * MIB, "forward and backward")
    assert study(adapted, estimated_peaks={0: peak}).project(**ONE).gradient_bytes == 4 * MIB


def test_buckets_that_may_not_fit_are_noted() -> None:
    tight = study(configuration(6), allowed_bytes=550 * MIB)
    assert any("DDP's buckets" in note for note in tight.project(**ONE).notes)
    assert not tight.project(**ONE, fsdp="full_shard").notes
    assert not EIGHT.project(**ONE).notes


# Links and refusals --------------------------------------------------------------------------------------------------


def test_a_link_is_a_name_of_the_table_or_a_number() -> None:
    assert find_link("nvlink4").gigabytes_per_second == 450
    assert find_link("12.5").gigabytes_per_second == find_link(12.5).gigabytes_per_second == 12.5
    assert all(link.source and link.gigabytes_per_second > 0 for link in LINKS.values())
    assert "nvlink4" in refusal_of(lambda: find_link("nvlink"))
    for number in ("0", "-1", "inf", "nan"):
        refusal_of(lambda number=number: find_link(number))


@pytest.mark.parametrize("ranks", [1, 17, 2.0, True])
def test_ranks_are_a_whole_number_of_one_machine(ranks: Any) -> None:
    with pytest.raises(InvalidRequest, match="whole number from 2 to 16"):
        EIGHT.project(**ONE, ranks=ranks)


def test_what_cannot_be_projected_is_refused() -> None:
    assert "full_shard" in refusal_of(lambda: EIGHT.project(**ONE, fsdp="full"))
    two = Configuration.exact(48, 6, {**dict(configuration().settings), "data_parallel_size": 2})
    assert "one rank" in refusal_of(lambda: study(two).project(**ONE))
    four_bits = configuration(6, quantization="nf4")
    assert "four bits" in refusal_of(lambda: study(four_bits).project(**ONE, fsdp="full_shard"))
    odd = Configuration.exact(7, 7, dict(configuration().settings))
    assert "divides" in refusal_of(lambda: study(odd).project(**ONE))
    unknown = study(configuration(6), measurement=trial(0).measurement)
    assert "forward and backward" in refusal_of(lambda: unknown.project(**ONE))


# In words ------------------------------------------------------------------------------------------------------------


def shown() -> Projection:
    answer = configuration(16, precision="bf16")
    return study(answer, measurement=measured(answer, spread=0.02)).project("nvlink4")


def test_the_text_calls_it_a_projection_and_says_what_is_not_known(golden: Callable[[str, str], None]) -> None:
    lines = projection_lines(shown())
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Projection, not measured")
    golden("project.txt", "\n".join(lines) + "\n")
    assert "not measured" in repr(shown())


def test_json_calls_it_a_projection_too() -> None:
    data = json.loads(json.dumps(shown().to_dict()))
    assert data["is_measured"] is False
    assert [run["ranks"] for run in data["projections"]] == [2, 4, 8]
    assert all(not name.startswith(("speedup", "samples")) for run in data["projections"] for name in run)
    assert data["projections"][0]["projected_speedup"]["low"] <= data["projections"][0]["projected_speedup"]["high"]
    assert data["unknown"]


def test_the_command_prints_text_or_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown().result.save(tmp_path / "reports" / "first")  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["project", "first", "--link", "nvlink4", "--ranks", "4"])
    assert done.exit_code == 0, done.output
    assert "Projection, not measured" in done.stdout
    done = CliRunner().invoke(app, ["project", "first", "--link", "nvlink4", "--json"])
    assert json.loads(done.stdout)["projections"][-1]["ranks"] == 8
