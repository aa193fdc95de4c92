"""The end of a search: losses of the rounds bar who learns otherwise, and the winner is rehearsed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck
from autotune.core.time_limit import GRACE
from autotune.probe import ProbeOptions
from autotune.space.search_space import SearchSpace
from autotune.study.finish import KEPT, check_sanity, finish
from autotune.study.loop import open_study, search
from autotune.study.pacing import finishing_seconds
from autotune.study.plan import Plan
from autotune.study.study import Study
from tests.clocks import SimulatedTime, TimedTrainings
from tests.makers import ALLOWED, configuration, machine, out_of_memory, space

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
    best = study.standing.answer
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
    best = study.standing.answer
    assert best is not None
    assert best.confirmed
    study = searched(tmp_path / "allowed", Losses("bf16"), allow_loss_difference=True)
    assert winner(study).values["precision"] == "bf16"


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


def test_a_training_that_outlasts_the_time_is_ended_and_tried_again_by_the_next_run(tmp_path: Path) -> None:
    study = searched(tmp_path)
    time = SimulatedTime(1.2 * finishing_seconds(study.standing))
    study.plan = replace(study.plan, time=time)
    assert finished(study, TimedTrainings(time, Trainings(), 1000.0)) is None
    assert study.ledger.left_out == ["evaluation and checkpoint"]
    assert time.passed[0] <= (1 + GRACE) * (time.seconds or 0.0)
    study.plan = replace(study.plan, time=SimulatedTime(1e6))
    assert finished(study, Trainings()) is not None


def test_nothing_is_trained_where_nothing_fits_or_nothing_but_the_users_settings_was_measured(tmp_path: Path) -> None:
    train, alone = Trainings(), space(micro_batch_size=(2,), precision=("fp32",))
    assert finished(searched(tmp_path / "nothing", Losses(world=out_of_memory)), train) is None
    study = searched(tmp_path / "alone", among=alone)
    assert len(study.trials) == 1
    assert finished(study, train) is None
    assert not train.rehearsed
    assert study.ledger.left_out == []


def test_a_sanity_check_is_made_once_and_anew_for_another_configuration_or_after_damage(tmp_path: Path) -> None:
    made: list[Configuration] = []

    def checked(of: Configuration, answer: SanityCheck | None = DONE, failure: Failure | None = None) -> SanityCheck:
        def attempt(tried: Configuration, _: Path) -> tuple[Any, Failure | None]:
            made.append(tried)
            return answer and answer.to_dict(), failure

        return check_sanity(of, attempt, tmp_path)

    assert checked(configuration(8)) == checked(configuration(8)) == DONE
    assert checked(configuration(16), SanityCheck(eval_batch_size=16)).eval_batch_size == 16
    assert made == [configuration(8), configuration(16)]
    for damage in ("", "[]", '{"configuration": 1}'):
        (tmp_path / KEPT).write_text(damage)
        assert checked(configuration(16)) == DONE
    died = checked(configuration(4), None, Failure(Outcome.TIMED_OUT, "not done after 60 s"))
    assert died.lines() == ["sanity check: timed out: not done after 60 s"]
    assert checked(configuration(4)) == died, "a problem is kept too"
