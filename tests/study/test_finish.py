"""After the confirmation: losses compared, what is flagged barred unless it is allowed to win, the winner rehearsed."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.failures import Failure
from autotune.core.loss_curves import STEPS, Curve, Numerics
from autotune.core.sanity import SanityCheck
from autotune.core.time_limit import GRACE
from autotune.probe.replay import ReplayProbe
from autotune.space.search_space import SearchSpace
from autotune.study.finish import MOST_ANSWERS, NUMERICS_MOST_S, finish
from autotune.study.loop import open_study, search
from autotune.study.objective import best_trial
from autotune.study.pacing import finishing_seconds, losses_seconds
from autotune.study.plan import Plan
from autotune.study.study import Study
from tests.clocks import SimulatedTime, TimedTrainings
from tests.makers import ALLOWED, MIB, completed, machine, out_of_memory, space

World = Callable[[Configuration], Measurement]


class Trainings:
    """Answers numerics and rehearsal orders: losses of 5, or of 6 for the precisions that are `wrong`."""

    def __init__(self, *wrong: str) -> None:
        self.wrong = wrong
        self.asked: list[tuple[str, Configuration]] = []

    def __call__(
        self, kind: str, configuration: Configuration, folder: Path, deadline_s: float, request: Mapping[str, Any]
    ) -> tuple[Any, Failure | None]:
        self.asked.append((kind, configuration))
        if kind == "rehearsal":
            return SanityCheck(eval_batch_size=configuration.micro_batch_size).to_dict(), None
        loss = 6.0 if configuration.values.get("precision") in self.wrong else 5.0
        return Curve((loss + 0.01 * request["seed"],) * request["steps"]).to_dict(), None

    def of(self, kind: str) -> list[Configuration]:
        return [configuration for asked, configuration in self.asked if asked == kind]


def searched(folder: Path, world: World = machine, among: SearchSpace | None = None) -> tuple[Study, ReplayProbe]:
    """A finished search of 2 micro-batch sizes in fp32 and bf16, the latter 1.3x as fast."""
    plan = Plan(n_trials=6, objective="samples_per_second", memory_limit_bytes=1100 * MIB, allowed_bytes=ALLOWED)
    among = among or space(micro_batch_size=(1, 2), precision=("fp32", "bf16"))
    study = open_study(folder, among, replace(plan, sampler="brute-force", confirmation_rounds=1))
    probe = ReplayProbe(world)
    search(study, probe)
    return study, probe


def finished(
    study: Study, probe: ReplayProbe, train: Trainings, **asked: bool
) -> tuple[Numerics | None, SanityCheck | None]:
    return finish(study, probe, train, "random weights", lambda progress: None, **asked)


def winner(study: Study) -> Configuration:
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    return best.configuration


def test_every_finalist_and_three_seeds_of_fp32_are_trained_and_the_winner_is_rehearsed(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    train = Trainings()
    numerics, rehearsal = finished(study, probe, train)
    assert numerics is not None
    assert len(numerics.references) == 3
    assert set(numerics.curves) == {trial.number for trial in study.trials if trial.confirmed}
    assert winner(study).values["precision"] == "bf16"
    assert train.of("rehearsal") == [winner(study)]
    assert rehearsal is not None
    assert rehearsal.eval_batch_size == winner(study).micro_batch_size


def test_what_is_flagged_wins_only_where_that_is_allowed(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    numerics, _ = finished(study, probe, Trainings("bf16"), allow_loss_difference=True)
    best = best_trial(study.trials, "samples_per_second")
    assert numerics is not None
    assert best is not None
    assert "standard deviations" in numerics.flag(best.number)
    assert best.configuration.values["precision"] == "bf16"


def test_where_the_answer_is_flagged_the_fastest_that_learns_as_fp32_wins_and_is_confirmed(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    train = Trainings("bf16")
    finished(study, probe, train)
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    assert best.configuration.values["precision"] == "fp32"
    assert best.confirmed
    assert train.of("rehearsal") == [best.configuration]
    disqualified_reason = [trial for trial in study.trials if trial.disqualified_reason]
    assert disqualified_reason
    assert {trial.configuration.values["precision"] for trial in disqualified_reason} == {"bf16"}


def test_where_everything_is_flagged_nothing_wins(tmp_path: Path) -> None:
    class Diverging(Trainings):
        def __call__(self, kind: str, *more: Any) -> tuple[Any, Failure | None]:
            answer, failure = super().__call__(kind, *more)
            fine = kind == "rehearsal" or "reference" in str(more[1])
            return (answer if fine else Curve((float("nan"),) * STEPS).to_dict()), failure

    study, probe = searched(tmp_path)
    numerics, rehearsal = finished(study, probe, Diverging())
    assert numerics is not None
    # The baseline is fp32 itself: it is the reference, and stays.
    assert winner(study) == study.trials[0].configuration
    assert rehearsal is not None


def test_losses_that_would_take_too_long_are_left_out_and_said_so_unless_parity_is_required(tmp_path: Path) -> None:
    def slow(configuration: Configuration) -> Measurement:
        known = machine(configuration)
        return replace(known, steps=tuple(replace(step, seconds=NUMERICS_MOST_S) for step in known.steps))

    study, probe = searched(tmp_path, slow)
    train = Trainings()
    numerics, _ = finished(study, probe, train)
    assert numerics is not None
    assert "would take about" in numerics.problem
    assert not train.of("numerics")
    numerics, _ = finished(study, probe, train, require_parity=True)
    assert numerics is not None
    assert not numerics.problem


def test_losses_take_three_times_what_was_foreseen_at_the_most_unless_parity_is_required(tmp_path: Path) -> None:
    deadlines: list[float] = []

    class Timed(Trainings):
        def __call__(self, kind: str, of: Configuration, folder: Path, deadline_s: float, request: Any) -> Any:
            if kind == "numerics":
                deadlines.append(deadline_s)
            return super().__call__(kind, of, folder, deadline_s, request)

    study, probe = searched(tmp_path)
    confirmed = [trial.number for trial in study.trials if trial.confirmed]
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    foreseen_s = losses_seconds(study.trials, [best.number, *(trial for trial in confirmed if trial != best.number)])
    train = Timed()
    finished(study, probe, train)
    assert foreseen_s < deadlines[0] <= 60.0 + 3 * foreseen_s
    assert deadlines == sorted(deadlines, reverse=True), "each has what those before it left"
    shutil.rmtree(study.folder / "numerics")
    deadlines.clear()
    finished(study, probe, train, require_parity=True)
    assert min(deadlines) >= 600.0


def test_where_there_is_no_time_for_all_finalists_losses_the_answers_alone_are_compared(tmp_path: Path) -> None:
    study, probe = searched(tmp_path, lambda one: completed(one, 10.0 + one.micro_batch_size / 100))
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    others = [trial.number for trial in study.trials if trial.confirmed and trial != best]
    assert len(others) > 1
    in_all = losses_seconds(study.trials, [best.number, *others])
    study.plan = replace(study.plan, time=SimulatedTime(0.999 * in_all))
    numerics, _ = finished(study, probe, Trainings())
    assert numerics is not None
    assert (set(numerics.curves), numerics.problem) == ({best.number}, "")


def test_where_only_the_answer_s_losses_are_compared_and_flagged_the_next_one_s_are_compared_in_turn(
    tmp_path: Path,
) -> None:
    speeds = {"fp32": 10.0, "bf16": 20.0, "fp16": 19.9}
    among = space(micro_batch_size=(2,), precision=tuple(speeds))
    study, probe = searched(tmp_path, lambda one: completed(one, speeds[str(one.values["precision"])]), among)
    confirmed = [trial.number for trial in study.trials if trial.confirmed]
    assert len(confirmed) == 3
    study.plan = replace(study.plan, time=SimulatedTime(0.999 * losses_seconds(study.trials, confirmed)))
    train = Trainings("bf16")
    numerics, _ = finished(study, probe, train)
    assert winner(study).values["precision"] == "fp16"
    assert [item.values["precision"] for item in train.of("numerics")] == ["fp32"] * 3 + ["bf16", "fp16"]
    assert numerics is not None
    by_precision = {trial.configuration.values["precision"]: trial for trial in study.trials}
    assert numerics.is_checked(by_precision["fp16"].number)
    assert by_precision["bf16"].disqualified_reason == numerics.flag(by_precision["bf16"].number) != ""


def test_what_learns_as_a_flagged_one_does_is_barred_without_a_training_of_its_own(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    train = Trainings("bf16")
    numerics, _ = finished(study, probe, train)
    assert numerics is not None
    unchecked = [trial for trial in study.trials if trial.disqualified_reason and not numerics.is_checked(trial.number)]
    assert [trial.configuration.micro_batch_size for trial in unchecked] == [1]
    assert not unchecked[0].confirmations
    assert "learns as trial" in unchecked[0].disqualified_reason


def test_once_too_many_answers_were_flagged_only_what_was_compared_may_win(tmp_path: Path) -> None:
    optimizers = ("adamw_torch", "sgd", "adafactor", "lion_32bit", "rmsprop", "adagrad")
    among = space(micro_batch_size=(2,), optimizer=optimizers)
    speeds = {name: 10.0 * 1.2**place for place, name in enumerate(optimizers)}
    study, probe = searched(tmp_path, lambda one: completed(one, speeds[str(one.values["optimizer"])]), among)

    class Diverging(Trainings):
        def __call__(self, kind: str, configuration: Configuration, *more: Any) -> tuple[Any, Failure | None]:
            answer, failure = super().__call__(kind, configuration, *more)
            other = kind == "numerics" and configuration.values["optimizer"] != "adamw_torch"
            return (Curve((9.0,) * STEPS).to_dict() if other else answer), failure

    train = Diverging()
    first = [trial.number for trial in study.trials if trial.number][-1]
    study.plan = replace(study.plan, time=SimulatedTime(1.001 * losses_seconds(study.trials, [first])))
    finished(study, probe, train)
    assert winner(study) == study.trials[0].configuration
    trained = {item.values["optimizer"] for item in train.of("numerics")}
    assert trained == {"adamw_torch", *optimizers[-MOST_ANSWERS:]}
    left = next(trial for trial in study.trials if trial.configuration.values["optimizer"] == "sgd")
    assert "not compared" in left.disqualified_reason


def test_the_baseline_stays_allowed_though_it_is_flagged(tmp_path: Path) -> None:
    among = space(micro_batch_size=(1, 2), precision=("bf16", "fp32"))
    study, probe = searched(tmp_path, among=among)
    numerics, _ = finished(study, probe, Trainings("bf16"))
    assert numerics is not None
    assert winner(study) == study.trials[0].configuration
    assert numerics.flag(0)
    assert not study.trials[0].disqualified_reason


def test_what_there_is_no_time_for_is_left_out_and_done_by_the_next_run(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    study.plan = replace(study.plan, time=SimulatedTime(1e-3))
    train = Trainings()
    assert finished(study, probe, train, require_parity=True) == (None, None)
    assert not train.asked
    assert study.left_out == ["losses", "evaluation and checkpoint"]
    study.left_out.clear()
    study.plan = replace(study.plan, time=SimulatedTime(1e6))
    numerics, rehearsal = finished(study, probe, train)
    assert numerics is not None
    assert rehearsal is not None
    assert study.left_out == []
    study.plan = replace(study.plan, time=SimulatedTime(1e-3))
    assert finished(study, probe, Trainings()) == (numerics, rehearsal), "what is there needs no time"


@pytest.mark.parametrize("seconds", [50.0, 1000.0])
def test_a_training_that_outlasts_the_time_is_ended_and_tried_again_by_the_next_run(
    tmp_path: Path, seconds: float
) -> None:
    study, probe = searched(tmp_path)
    time = SimulatedTime(1.2 * finishing_seconds(study.trials, "samples_per_second"))
    study.plan = replace(study.plan, time=time)
    train = TimedTrainings(time, Trainings(), seconds)
    assert finish(study, probe, train, "random weights", lambda progress: None, False)[0] is None
    assert study.left_out[:1] == ["losses"]
    assert time.passed[0] <= (1 + GRACE) * (time.seconds or 0.0)
    study.plan = replace(study.plan, time=SimulatedTime(1e6))
    numerics, rehearsal = finished(study, probe, Trainings())
    assert numerics is not None
    assert not numerics.problem
    assert rehearsal is not None


def test_nothing_is_trained_where_nothing_fits(tmp_path: Path) -> None:
    study, probe = searched(tmp_path, out_of_memory)
    train = Trainings()
    assert finished(study, probe, train) == (None, None)
    assert not train.asked


def test_what_was_done_before_an_interruption_is_not_done_again(tmp_path: Path) -> None:
    study, probe = searched(tmp_path)
    first, again = Trainings(), Trainings()
    assert finished(study, probe, first) == finished(study, probe, again)
    assert first.asked
    assert not again.asked


def test_a_training_that_fails_is_told_and_flags_nothing(tmp_path: Path) -> None:
    class Failing(Trainings):
        def __call__(self, kind: str, *more: Any) -> tuple[Any, Failure | None]:
            return None, Failure(Outcome.CRASHED, "it broke", "training")

    study, probe = searched(tmp_path)
    numerics, rehearsal = finished(study, probe, Failing())
    assert numerics is not None
    assert "it broke" in numerics.problem
    assert not any(trial.disqualified_reason for trial in study.trials)
    assert rehearsal is not None
    assert "it broke" in " ".join(rehearsal.lines())
