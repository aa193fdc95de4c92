"""The end of a search: losses of the rounds bar who learns otherwise, and the winner is rehearsed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck
from autotune.core.time_limit import GRACE
from autotune.probe import ProbeOptions
from autotune.space.search_space import SearchSpace
from autotune.study.finish import KEPT, check_sanity, finish
from autotune.study.loop import open_study, search
from autotune.study.objective import best_trial
from autotune.study.pacing import finishing_seconds
from autotune.study.plan import Plan
from autotune.study.study import Study
from tests.clocks import SimulatedTime, TimedTrainings
from tests.makers import ALLOWED, completed, configuration, machine, out_of_memory, space

World = Callable[[Configuration], Measurement]
DONE = SanityCheck(eval_batch_size=8, eval_batches_tried=(8,), checkpoint_bytes=62, checkpoint_seconds=0.1)
FALLING = tuple(9 - 0.05 * step for step in range(12))


class Losses:
    """A probe whose rounds bring losses that fall, but for the precisions that are `wrong`; measured: all it was asked for."""

    def __init__(self, *wrong: str, world: World = machine) -> None:
        self.wrong, self.world = wrong, world
        self.measured: list[tuple[Configuration, int]] = []

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        self.measured.append((configuration, options.slot.round))
        measurement = self.world(configuration)
        if not options.slot.round or measurement.outcome is not Outcome.COMPLETED:
            return measurement
        trained = configuration.values.get("precision")
        losses = (9.0,) * 12 if trained in self.wrong else FALLING
        return replace(measurement, losses=losses, settings={"precision": trained})


class Trainings:
    """Answers orders of sanity checks; rehearsed: the configurations."""

    def __init__(self) -> None:
        self.rehearsed: list[Configuration] = []

    def __call__(
        self, kind: str, configuration: Configuration, folder: Path, deadline_s: float, request: Mapping[str, Any]
    ) -> tuple[Any, Failure | None]:
        assert kind == "sanity_check"
        self.rehearsed.append(configuration)
        return SanityCheck(eval_batch_size=configuration.micro_batch_size).to_dict(), None


def searched(folder: Path, probe: Losses | None = None, among: SearchSpace | None = None, **plan: Any) -> Study:
    """A finished search of 2 micro-batch sizes in fp32 and bf16, the latter 1.3x as fast."""
    folder.mkdir(exist_ok=True)
    known = Plan(n_trials=6, objective="samples_per_second", allowed_bytes=ALLOWED)
    among = among or space(micro_batch_size=(1, 2), precision=("fp32", "bf16"))
    study = open_study(folder, among, replace(known, sampler="brute-force", confirmation_rounds=2, **plan))
    search(study, probe or Losses())
    return study


def finished(study: Study, train: Any) -> SanityCheck | None:
    return finish(study, train, lambda progress: None)


def winner(study: Study) -> Configuration:
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    return best.configuration


def test_the_winner_is_rehearsed_and_every_confirmed_trial_s_losses_are_compared(tmp_path: Path) -> None:
    study, train = searched(tmp_path), Trainings()
    sanity_check = finished(study, train)
    assert study.ledger.numerics is not None
    assert set(study.ledger.numerics.curves) == {trial.number for trial in study.trials if trial.confirmed}
    assert winner(study).values["precision"] == "bf16"
    assert train.rehearsed == [winner(study)]
    assert sanity_check is not None
    assert sanity_check.eval_batch_size == winner(study).micro_batch_size


def test_who_learns_nothing_wins_only_where_that_is_allowed(tmp_path: Path) -> None:
    study = searched(tmp_path / "barred", Losses("bf16"))
    assert winner(study).values["precision"] == "fp32"
    barred = [trial for trial in study.trials if trial.disqualified_reason]
    assert {trial.configuration.values["precision"] for trial in barred} == {"bf16"}
    assert any("learns as trial" in trial.disqualified_reason for trial in barred if not trial.confirmations)
    best = best_trial(study.trials, "samples_per_second")
    assert best is not None
    assert best.confirmed
    study = searched(tmp_path / "allowed", Losses("bf16"), allow_loss_difference=True)
    assert winner(study).values["precision"] == "bf16"


def test_a_baseline_in_16_bits_is_compared_with_fp32_s_own_rounds_and_stays_allowed(tmp_path: Path) -> None:
    among = space(micro_batch_size=(1, 2), precision=("bf16",))

    def world(configuration: Configuration) -> Measurement:
        settings = {"precision": configuration.values["precision"]}
        return completed(
            configuration, 10.0 if configuration == among.baseline else 12.0, spread=1e-3, settings=settings
        )

    probe = Losses("bf16", world=world)
    study = searched(tmp_path, probe, among)
    assert study.ledger.numerics is not None
    assert study.ledger.numerics.flag(0)
    assert not study.trials[0].disqualified_reason
    in_fp32 = [of for of, round_number in probe.measured if of.values["precision"] == "fp32"]
    assert len(in_fp32) == len(study.ledger.references) > 0
    again = open_study(tmp_path, among, study.plan)
    assert again.ledger.references == study.ledger.references, "fp32's rounds are not run again by a resumed search"


def test_where_the_probes_showed_that_fp32_does_not_fit_its_rounds_are_not_run(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        if configuration.values["precision"] == "fp32":
            return out_of_memory(configuration)
        return replace(machine(configuration), settings={"precision": "bf16"})

    probe = Losses(world=world)
    study = searched(tmp_path, probe, space(micro_batch_size=(1, 2), precision=("fp32", "bf16")))
    assert winner(study).values["precision"] == "bf16"
    assert not [of for of, round_number in probe.measured if round_number and of.values["precision"] == "fp32"]
    assert [seen.outcome for seen in study.ledger.references.values()] == [Outcome.OUT_OF_MEMORY]


def test_what_there_is_no_time_for_is_left_out_and_done_by_the_next_run(tmp_path: Path) -> None:
    study, train = searched(tmp_path), Trainings()
    study.plan = replace(study.plan, time=SimulatedTime(1e-3))
    assert finished(study, train) is None
    assert not train.rehearsed
    assert study.ledger.left_out == ["evaluation and checkpoint"]
    study.ledger.left_out.clear()
    study.plan = replace(study.plan, time=SimulatedTime(1e6))
    sanity_check = finished(study, train)
    assert sanity_check is not None
    assert study.ledger.left_out == []
    study.plan = replace(study.plan, time=SimulatedTime(1e-3))
    again = Trainings()
    assert finished(study, again) == sanity_check, "what is there needs no time"
    assert not again.rehearsed


@pytest.mark.parametrize("seconds", [50.0, 1000.0])
def test_a_training_that_outlasts_the_time_is_ended_and_tried_again_by_the_next_run(
    tmp_path: Path, seconds: float
) -> None:
    study = searched(tmp_path)
    time = SimulatedTime(1.2 * finishing_seconds(study.trials, "samples_per_second"))
    study.plan = replace(study.plan, time=time)
    assert finished(study, TimedTrainings(time, Trainings(), seconds)) is None
    assert study.ledger.left_out == ["evaluation and checkpoint"]
    assert time.passed[0] <= (1 + GRACE) * (time.seconds or 0.0)
    study.plan = replace(study.plan, time=SimulatedTime(1e6))
    assert finished(study, Trainings()) is not None


def test_nothing_is_trained_where_nothing_fits(tmp_path: Path) -> None:
    study, train = searched(tmp_path, Losses(world=out_of_memory)), Trainings()
    assert finished(study, train) is None
    assert not train.rehearsed


def test_nothing_is_rehearsed_where_nothing_but_the_users_settings_was_measured(tmp_path: Path) -> None:
    study, train = searched(tmp_path, among=space(micro_batch_size=(2,), precision=("fp32",))), Trainings()
    assert len(study.trials) == 1
    assert finished(study, train) is None
    assert not train.rehearsed
    assert study.ledger.left_out == []


def test_a_training_that_fails_is_told(tmp_path: Path) -> None:
    sanity_check = finished(searched(tmp_path), lambda *order: (None, Failure(Outcome.CRASHED, "it broke", "training")))
    assert sanity_check is not None
    assert "it broke" in " ".join(sanity_check.lines())


class Attempts:
    """Counts what is attempted, and answers all alike."""

    def __init__(self, answer: Any, failure: Failure | None = None) -> None:
        self.made: list[tuple[Configuration, Path]] = []
        self._end = (answer, failure)

    def __call__(self, of: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        self.made.append((of, folder))
        return self._end


def test_a_sanity_check_is_made_once_and_then_read(tmp_path: Path) -> None:
    attempts, folder = Attempts(DONE.to_dict()), tmp_path / "sanity_check"
    assert check_sanity(configuration(8), attempts, folder) == DONE
    assert check_sanity(configuration(8), attempts, folder) == DONE
    assert attempts.made == [(configuration(8), folder)]


def test_another_configuration_is_rehearsed_anew(tmp_path: Path) -> None:
    check_sanity(configuration(8), Attempts(DONE.to_dict()), tmp_path)
    attempts = Attempts(SanityCheck(eval_batch_size=16).to_dict())
    assert check_sanity(configuration(16), attempts, tmp_path).eval_batch_size == 16
    assert len(attempts.made) == 1


def test_a_damaged_file_is_rehearsed_anew(tmp_path: Path) -> None:
    for damage in ("", "[]", '{"configuration": 1}'):
        (tmp_path / KEPT).write_text(damage)
        assert check_sanity(configuration(), Attempts(DONE.to_dict()), tmp_path) == DONE


def test_a_process_that_died_is_a_problem_and_kept_too(tmp_path: Path) -> None:
    attempts = Attempts(None, Failure(Outcome.TIMED_OUT, "not done after 60 s"))
    for _ in range(2):
        assert check_sanity(configuration(), attempts, tmp_path).lines() == [
            "sanity check: timed out: not done after 60 s"
        ]
    assert len(attempts.made) == 1
