"""Explanation of a speed-up: path and ablations in replayed worlds, and a study explained with real probes."""

import json
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.explain import remeasure, run
from autotune.commands.explain.explanation import Explanation
from autotune.commands.explain.path import MOST_TRIED, between, differing, find_path
from autotune.commands.explain.run import explain, explained
from autotune.commands.explain.text import explanation_lines, sentence
from autotune.commands.result import TuningResult
from autotune.core import (
    Configuration,
    Environment,
    InvalidRequest,
    Measurement,
    Outcome,
    Trial,
    Value,
    Workload,
    read_json,
)
from autotune.core.errors import NothingFits
from autotune.core.note import NoteKind
from autotune.core.request import tuning_request
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.probe import ProbeOptions
from autotune.probe.process.launcher import ProbeHost
from autotune.space.utilization import Arithmetic, SampleFlops
from autotune.study.store import EXPLANATION
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory, result, step, trial
from tests.replay_probe import ReplayProbe

World = Callable[[Configuration], Measurement]
FACTORS: dict[tuple[str, Value], float] = {
    ("micro_batch_size", 16): 1.5,
    ("precision", "bf16"): 1.3,
    ("optimizer", "adafactor"): 0.95,
    ("checkpointing", "full"): 0.8,
    ("workers", 2): 1.1,
}


def world(jitter: float = 0.01, seed: int = 0, peak: Callable[[Configuration], int] = lambda _: 500 * MIB) -> World:
    """Each value makes a training so many times as fast, more or less by chance; memory as said."""
    chance = random.Random(seed)

    def measured(of: Configuration) -> Measurement:
        speed = 10 * math.prod(FACTORS.get(item, 1.0) for item in of.values.items())
        if peak(of) > ALLOWED:
            return out_of_memory(of)
        return completed(of, speed * chance.uniform(1 - jitter, 1 + jitter), peak(of))

    return measured


def study(answer: Configuration, *others: Trial, of: World | None = None, **facts: Any) -> TuningResult:
    """A study of a baseline with a micro-batch of 8 and this answer, measured in this world."""
    measured = of or world(0.0)
    own = configuration(8)
    rounds = measured(own), measured(answer)
    trials = [
        Trial(number, item, first, (first,) * 3 if first.feasible else ())
        for number, (item, first) in enumerate(zip((own, answer), rounds, strict=True))
    ]
    return result([*trials, *others], **facts)


def explained_in(
    of: TuningResult, place: Path, measured: World | ReplayProbe | None = None, rounds: int = 3
) -> tuple[Explanation, ReplayProbe]:
    probe = measured if isinstance(measured, ReplayProbe) else ReplayProbe(measured or world())
    return explained(of, probe, place, rounds), probe


def requests(probe: ReplayProbe) -> list[tuple[Configuration, int]]:
    return [(item, options.slot.round) for item, options in probe.asked]


TWO = configuration(16, precision="bf16")
THREE = configuration(16, precision="bf16", workers=2)


# The path ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_gains_multiply_to_the_speed_up_of_the_same_rounds(tmp_path: Path, rounds: int) -> None:
    explanation, _ = explained_in(study(THREE), tmp_path, world(0.2, rounds), rounds)
    assert explanation.total is not None
    assert explanation.product == pytest.approx(float(explanation.total), rel=1e-12)
    assert len(explanation.steps) == 3
    assert any(note.kind is NoteKind.FEW_ROUNDS for note in explanation.notes) is (rounds == 1)


def test_the_path_changes_one_setting_a_leg_the_largest_loss_first(tmp_path: Path) -> None:
    explanation, _ = explained_in(study(THREE), tmp_path)
    assert [step.settings for step in explanation.steps] == [("micro_batch_size",), ("precision",), ("workers",)]
    assert [float(step.gain or 0) for step in explanation.steps] == pytest.approx([1.5, 1.3, 1.1], rel=0.03)
    trials = [explanation.steps[0].before, *(step.after for step in explanation.steps)]
    assert trials[0].configuration == configuration(8)
    assert trials[-1].configuration == THREE
    assert all(item.after.configuration == other.before.configuration for item, other in pairwise(explanation.steps))


def test_every_configuration_is_measured_once_a_round_in_turns(tmp_path: Path) -> None:
    explanation, probe = explained_in(study(THREE), tmp_path, world(0.001))
    all_requests = requests(probe)
    assert len(all_requests) == len(set(all_requests)) == 6 * 3, "the path has four, the ablations two more"
    assert all(options.best_so_far is None for _, options in probe.asked), "none may end early"
    turns = [[item for item, at in all_requests if at == turn] for turn in (1, 2, 3)]
    assert {*turns[0]} == {*turns[1]} == {*turns[2]}
    assert len({turn[0] for turn in turns[1:]}) == 2, "no configuration always runs first"
    assert explanation.remeasured is not None
    assert explanation.remeasured.rounds == 3


def test_further_rounds_are_run_while_the_whole_gain_is_uncertain(tmp_path: Path) -> None:
    explanation, probe = explained_in(study(TWO), tmp_path, world(0.4))
    assert max(turn for _, turn in requests(probe)) == 6
    assert explanation.remeasured is not None
    assert explanation.remeasured.rounds == 6


def test_what_saves_memory_comes_before_what_needs_it(tmp_path: Path) -> None:
    def peak(of: Configuration) -> int:
        return int(of.micro_batch_size * (60 if of.values["checkpointing"] == "full" else 100) * MIB)

    answer = configuration(16, checkpointing="full", precision="bf16")
    explanation, probe = explained_in(study(answer, of=world(0.0, peak=peak)), tmp_path, world(peak=peak))
    assert explanation.steps[0].settings == ("checkpointing",)
    assert explanation.steps[0].gain is not None
    assert explanation.steps[0].gain < 1, "it costs speed, and lets the micro-batch grow"
    assert all(step.after.feasible for step in explanation.steps)
    assert [row.setting for row in explanation.ablations if row.gain is None] == ["checkpointing"]
    failed = [item for item in requests(probe) if peak(item[0]) > ALLOWED]
    assert failed == [(configuration(16, precision="bf16"), 1)], "tried once and not again"


def pair(inner: World) -> World:
    """bf16 runs with adafactor alone, and adafactor with bf16."""

    def measured(of: Configuration) -> Measurement:
        alone = (of.values["precision"] == "bf16") != (of.values["optimizer"] == "adafactor")
        return ended(Outcome.UNSUPPORTED, reason="one needs the other") if alone else inner(of)

    return measured


def test_settings_that_run_only_together_are_one_leg(tmp_path: Path) -> None:
    answer = configuration(16, precision="bf16", optimizer="adafactor")
    explanation, _ = explained_in(study(answer), tmp_path, pair(world()))
    assert {step.settings for step in explanation.steps} == {("precision", "optimizer"), ("micro_batch_size",)}
    assert explanation.product == pytest.approx(float(explanation.total or 0), rel=1e-12)
    assert "(only together)" in "\n".join(explanation_lines(explanation))


def test_a_configuration_that_crashes_on_the_way_is_passed_over_and_told(tmp_path: Path) -> None:
    def measured(of: Configuration) -> Measurement:
        broken = of.values["precision"] == "bf16" and of.micro_batch_size == 8 and of.values["workers"] == 0
        return ended(Outcome.CRASHED, reason="RuntimeError: a bug") if broken else world()(of)

    explanation, _ = explained_in(study(THREE), tmp_path, measured)
    assert [len(step.settings) for step in explanation.steps] == [1, 1, 1]
    assert explanation.steps[0].settings == ("micro_batch_size",)
    explanation, _ = explained_in(study(TWO), tmp_path / "two", measured)
    assert any("RuntimeError: a bug" in item["reason"] for item in explanation.to_dict()["did_not_run"])


def test_a_configuration_that_fails_in_a_later_round_leaves_its_legs_to_one(tmp_path: Path) -> None:
    inner, probe = world(), ReplayProbe({})

    def measured(of: Configuration) -> Measurement:
        later = probe.asked[-1][1].slot.round == 2
        return out_of_memory(of) if later and of == configuration(16) else inner(of)

    probe.table = measured
    explanation, _ = explained_in(study(THREE), tmp_path, probe)
    assert [step.settings for step in explanation.steps] == [("micro_batch_size", "precision"), ("workers",)]
    assert explanation.product == pytest.approx(float(explanation.total or 0), rel=1e-12)
    assert (configuration(16), 3) not in requests(probe)


def test_where_too_many_are_tried_in_vain_all_that_is_left_is_one_leg() -> None:
    settings = [f"setting{number}" for number in range(8)]
    tried: list[frozenset[str]] = []

    def runs(taken: Any) -> bool:
        tried.append(taken)
        return not taken

    path = find_path(settings, lambda taken: taken, runs)  # type: ignore[arg-type, return-value]
    assert path == [frozenset(), frozenset(settings)]
    assert len(tried) == 1 + MOST_TRIED


def test_what_trials_of_the_search_settle_is_not_tried_again(tmp_path: Path) -> None:
    answer = configuration(16, checkpointing="full")
    failed = Trial(2, configuration(16), out_of_memory(configuration(16)))
    explanation, probe = explained_in(study(answer, failed), tmp_path)
    assert configuration(16) not in {item for item, _ in requests(probe)}
    failures = explanation.to_dict()["did_not_run"]
    assert [failure["configuration"] for failure in failures] == [configuration(16).to_dict()]
    assert failures[0]["implied_by"] == 2
    assert "trial 2 of the search" in " ".join(explanation_lines(explanation))


# A baseline or an answer that does not run ------------------------------------------------------------------------


def test_a_path_without_a_baseline_starts_at_the_nearest_that_runs(tmp_path: Path) -> None:
    def peak(of: Configuration) -> int:
        return 800 * MIB if of.values["checkpointing"] == "full" else 2000 * MIB

    answer = configuration(16, checkpointing="full")
    of = world(peak=peak)
    explanation, _ = explained_in(study(answer, of=of), tmp_path, of)
    assert not explanation.from_the_baseline
    assert explanation.steps[0].before.configuration == configuration(8, checkpointing="full")
    assert explanation.within is None
    assert "the baseline does not run here" in "\n".join(explanation_lines(explanation))


def test_an_answer_that_does_not_run_this_time_is_said_and_nothing_more_measured(tmp_path: Path) -> None:
    def measured(of: Configuration) -> Measurement:
        return out_of_memory(of) if of == TWO else completed(of)

    explanation, probe = explained_in(study(TWO), tmp_path, measured)
    assert "did not run this time (out of memory" in sentence(explanation)
    assert len(probe.asked) == 2
    assert explanation_lines(explanation)


def test_where_the_baseline_is_the_answer_nothing_is_measured_but_why_is_told(tmp_path: Path) -> None:
    slower = trial(1, 8.0, of=configuration(8, precision="bf16"))
    own = result([trial(0, 10.0, of=configuration(8), confirmed=10.0), slower])
    explanation, probe = explained_in(own, tmp_path)
    assert probe.asked == []
    assert sentence(explanation) == (
        "There is no speed-up to explain. No faster settings found in 2 trials. The Trainer's defaults: 10.00 ± 0.31 samples/s, "
        "peak 500 MiB. Next best: trial 1 (8x6, bf16), 0.80x, 95% interval 0.72x to 0.89x, not proven."
    )
    lines = explanation_lines(explanation)
    assert [line for line in lines if line.startswith("  the baseline: compute-bound")]
    assert "the answer" not in "\n".join(lines)


# Ablations -------------------------------------------------------------------------------------------------------


def test_each_setting_is_taken_back_alone_with_its_interval(tmp_path: Path) -> None:
    explanation, _ = explained_in(study(THREE), tmp_path)
    assert explanation.remeasured is not None
    backs = {back.setting: back for back in explanation.ablations}
    assert backs["workers"].without.configuration == configuration(16, precision="bf16")
    for name, factor in {"micro_batch_size": 1.5, "precision": 1.3, "workers": 1.1}.items():
        gain = backs[name].gain
        assert gain is not None
        assert gain.low <= factor <= gain.high
        assert gain.relative_width < 0.2


def test_a_setting_that_means_nothing_without_another_goes_back_with_it() -> None:
    own = Configuration.exact(8, 2, {"workers": 0, "prefetch_factor": 2})
    answer = Configuration.exact(8, 2, {"workers": 2, "prefetch_factor": 4})
    assert differing(own, answer) == ("workers", "prefetch_factor")
    assert between(own, answer, {"prefetch_factor"}) == own
    assert between(own, answer, {"workers"}).values["prefetch_factor"] == 2
    assert between(own, answer, {"workers", "prefetch_factor"}) == answer
    assert differing(answer, own) == ("workers",), "prefetching means nothing where nobody works ahead"
    assert between(answer, own, {"workers"}) == own
    path = find_path(
        ["prefetch_factor", "workers"], lambda taken: between(own, answer, taken), lambda configuration: True
    )
    assert path == [frozenset(), frozenset({"workers"}), frozenset({"workers", "prefetch_factor"})]


# Against the proven speed-up -------------------------------------------------------------------------------------


def proven_at(low: float, high: float) -> TuningResult:
    """A study whose answer was shown to be between so many times the speed of the baseline."""
    rounds = (low, (low * high) ** 0.5, high)
    answer = Trial(
        1, TWO, completed(TWO, 10 * rounds[1]), tuple(completed(TWO, 10 * measurement) for measurement in rounds)
    )
    own = configuration(8)
    return result([Trial(0, own, completed(own), (completed(own, 10.0),) * 3), answer])


def test_it_is_said_whether_the_product_lies_within_the_proven_interval(tmp_path: Path) -> None:
    inside, _ = explained_in(proven_at(1.9, 2.0), tmp_path / "inside")
    assert inside.within is True
    assert "inside the proven 1.95x" in sentence(inside)
    apart, _ = explained_in(proven_at(1.2, 1.21), tmp_path / "apart")
    assert apart.within is False
    assert "outside the proven 1.2" in sentence(apart)
    assert "the intervals do not overlap" in sentence(apart)
    near, _ = explained_in(proven_at(1.96, 1.97), tmp_path / "near", world(0.1))
    assert near.within is False
    assert "the intervals overlap" in sentence(near)


# Resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 5, 15])
def test_an_interrupted_explanation_goes_on_and_measures_nothing_twice(tmp_path: Path, at: int) -> None:
    steady = world(0.0)
    before: list[tuple[Configuration, ProbeOptions]] = []

    def stops(of: Configuration, options: ProbeOptions) -> Measurement:
        if len(before) == at:
            raise KeyboardInterrupt
        before.append((of, options))
        return steady(of)

    with pytest.raises(KeyboardInterrupt):
        explained(study(THREE), stops, tmp_path)
    explanation, probe = explained_in(study(THREE), tmp_path, steady)
    both = [(of, options.slot.round) for of, options in before] + requests(probe)
    assert len(both) == len(set(both)) == 18
    again, third = explained_in(study(THREE), tmp_path, steady)
    assert third.asked == []
    assert again.to_dict() == explanation.to_dict()
    (tmp_path / "probes" / "0001" / "confirmation-2" / "measurement.json").write_text("{")
    _, fourth = explained_in(study(THREE), tmp_path, steady)
    assert requests(fourth) == [(THREE, 2)], "what cannot be read is measured again"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A saved study whose explanation was measured before, so that nothing needs a process."""
    peak = MemoryPeak(MemorySplit(weights=10 * MIB), 90 * MIB, "optimizer step")
    counted = Arithmetic({"": SampleFlops(1e9)}, {"bf16": 1e12})
    folder = replace(study(TWO), estimated_peaks={0: peak}, arithmetic=counted).save(tmp_path / "reports" / "small")
    run._begin(folder / EXPLANATION, TuningResult.load(folder), fresh=False)
    explained_in(TuningResult.load(folder), folder / EXPLANATION)
    return folder


def test_a_second_explanation_answers_from_the_first_and_writes_its_files(
    kept: Path, golden: Callable[[str, str], None]
) -> None:
    explanation = explain(kept)
    data = read_json(kept / "explanation.json")
    assert data == json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert data["product"] == pytest.approx(data["total"], rel=1e-12)
    assert data["utilization"]["answer"] == pytest.approx(float(explanation.best.samples_per_second or 0) * 1e-3)
    assert data["mfu"] == {"baseline": None, "answer": None}, "a CPU"
    golden("explain.txt", "\n".join(explanation_lines(explanation)) + "\n")


def test_the_command_prints_text_or_one_json_object(kept: Path) -> None:
    shown = CliRunner().invoke(app, ["explain", str(kept)])
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    plain = CliRunner().invoke(app, ["explain", kept.name, "--output-dir", str(kept.parent), "--json"])
    assert json.loads(plain.stdout) == read_json(kept / "explanation.json")


def test_another_answer_is_measured_anew(kept: Path) -> None:
    place = kept / EXPLANATION
    loaded = TuningResult.load(kept)
    run._begin(place, loaded, fresh=False)
    assert (place / "probes").is_dir()
    run._begin(place, study(THREE), fresh=False)
    assert not (place / "probes").exists()
    run._begin(place, loaded, fresh=False)
    explained_in(loaded, place)
    run._begin(place, loaded, fresh=True)
    assert not (place / "probes").exists()


def test_a_search_begun_again_removes_the_explanation(kept: Path) -> None:
    from autotune.report import FILES
    from autotune.study.store import remove_study

    explain(kept)
    remove_study(kept, FILES)
    assert not [path.name for path in kept.iterdir() if "explanation" in path.name]


@pytest.mark.parametrize("rounds", [21, True])
def test_rounds_that_are_none_are_refused(tmp_path: Path, rounds: Any) -> None:
    with pytest.raises(InvalidRequest, match="The rounds must be a whole number from 1 to 20"):
        explain(tmp_path, rounds)


def test_a_study_without_an_answer_is_refused(tmp_path: Path) -> None:
    nothing = result([Trial(0, configuration(), out_of_memory(configuration()))])
    with pytest.raises(NothingFits):
        explain(nothing.save(tmp_path / "nothing"))


# Why --------------------------------------------------------------------------------------------------------------


def bound_of(*others: Trial, answer: Trial | None = None) -> tuple[str, str]:
    from autotune.commands.explain.reasons import bound

    answer = answer or trial(1, of=TWO)
    reason = bound(answer, [answer, *others])
    return (reason.kind, reason.text) if reason else ("", "")


def test_what_bounds_a_training_is_told() -> None:
    assert bound_of(answer=Trial(0, TWO, out_of_memory(TWO))) == ("", "")
    waiting = completed(TWO, steps=tuple(step(1.0, samples=48, data_wait_s=0.3, last_s=0.7) for _ in range(5)))
    assert bound_of(answer=Trial(1, TWO, waiting)) == ("input", "input-bound: 30% of a step is waiting for data")
    updating = completed(TWO, steps=tuple(step(1.0, samples=48, optimizer_s=0.8) for _ in range(5)))
    assert bound_of(answer=Trial(1, TWO, updating))[0] == "optimizer"
    between_them = completed(TWO, steps=tuple(step(1.0, samples=48, last_s=0.2) for _ in range(5)))
    assert bound_of(answer=Trial(1, TWO, between_them))[0] == "overhead"
    kind, why = bound_of()
    assert kind == "compute"
    assert "its peak is 50% of the memory allowed" in why
    larger = configuration(24, precision="bf16")
    kind, why = bound_of(Trial(5, larger, out_of_memory(larger)))
    assert kind == "memory"
    assert "micro_batch_size 24 (trial 5) did not fit" in why


# For real ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_study_is_explained_with_real_probes(
    host: ProbeHost,
    environment: Environment,
    workload_of: Callable[..., Workload],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "HostSet", lambda: nullcontext(host))
    monkeypatch.setattr(remeasure, "SPEED_UP_WIDTH", math.inf)
    monkeypatch.setattr(run, "environment_here", lambda *_: environment)
    folder = result(
        [
            trial(number, 30.0 + 9 * number, of=configuration(2 + 2 * number, 4), confirmed=30.0 + 9 * number)
            for number in (0, 1)
        ],
        request=tuning_request("bert-mini", 4, device="cpu", sequence_length=16),
        workload=workload_of("bert-mini", sequence_length=16),
        environment=environment,
    ).save(tmp_path / "small")
    first, second = (explain(folder, rounds=1, watch=False) for _ in range(2))
    assert first.to_dict() == second.to_dict(), "nothing is measured twice"
    assert first.product == pytest.approx(float(first.total or 0), rel=1e-9)
    assert [step.settings for step in first.steps] == [("micro_batch_size",)]


# Ranks -----------------------------------------------------------------------------------------------------------


def test_ranks_and_the_micro_batch_that_goes_with_them_are_one_step_of_the_path() -> None:
    ranked = {"precision": "fp32", "data_parallel_size": 1}
    baseline = Configuration.exact(8, 8, ranked)
    answer = Configuration.exact(8, 2, {"precision": "bf16", "data_parallel_size": 4})
    assert differing(baseline, answer) == ("precision", "data_parallel_size")
    for taken in ((), ("precision",), ("data_parallel_size",), ("precision", "data_parallel_size")):
        mixed = between(baseline, answer, taken)
        assert mixed.global_batch_size == 8
        assert (mixed.micro_batch_size, mixed.data_parallel_size) == (
            (2, 4) if "data_parallel_size" in taken else (8, 1)
        )
