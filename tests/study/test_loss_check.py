"""Which trainings the numerics check asks for, what it keeps of them, and what it makes of their ends."""

from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Outcome, Trial, write_json
from autotune.core.failures import Failure
from autotune.core.loss_curves import SEEDS, STEPS, Curve, Numerics
from autotune.study.loss_check import KEPT, check_numerics, in_float32, predicted_seconds, stand_in
from tests.makers import SETTINGS, configuration, out_of_memory, trial

BASELINE = configuration(8, precision="bf16", optimizer="adamw_torch")
FAST = configuration(16, precision="bf16", optimizer="adamw_bnb_8bit", workers=2)
LEAN = configuration(4, precision="fp32", checkpointing="full", optimizer="adamw_torch")
FLOAT32 = configuration(8, precision="fp32", optimizer="adamw_torch")
TRIALS = [trial(0, 10.0, of=BASELINE), trial(1, 40.0, of=FAST), trial(2, 20.0, of=LEAN), trial(3, 12.0, of=FLOAT32)]


class Trainings:
    """Answers as the children would, and remembers what was asked for.

    by: configuration -> its losses' level, or the Failure that it meets. sums: as a model whose loss is added up.
    """

    def __init__(self, by: dict[Configuration, float | Failure] | None = None, sums: bool = False) -> None:
        self.by, self.sums = by or {}, sums
        self.asked: list[tuple[Configuration, int, str]] = []

    def __call__(self, of: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
        self.asked.append((of, seed, folder.name))
        level = self.by.get(of, 8.0)
        if isinstance(level, Failure):
            return None, level
        times = of.gradient_accumulation_steps if self.sums else 1
        losses = tuple(times * loss for loss in (9.0 + seed / 10, *[level + seed / 10] * (STEPS - 1)))
        return Curve(losses, skipped_steps=3 if of == FAST else 0).to_dict(), None


def check(
    folder: Path, trainings: Trainings, finalists: tuple[int, ...] = (1, 2), trials: list[Trial] = TRIALS
) -> Numerics:
    return check_numerics(trials, finalists, trainings, folder, "random weights")


def test_float32_is_the_baseline_but_for_its_precision_and_trained_once_a_seed(tmp_path: Path) -> None:
    trainings = Trainings({FAST: 8.15})
    numerics = check(tmp_path, trainings)
    assert trainings.asked == [
        *[(FLOAT32, seed, f"reference-{seed}") for seed in SEEDS],
        (FAST, 0, "trial-0001"),
        (LEAN, 0, "trial-0002"),
    ]
    assert numerics.reference_settings == FLOAT32.values
    assert [round(reference.level, 6) for reference in numerics.references] == [8.0, 8.1, 8.2]
    assert list(numerics.curves) == [1, 2]
    assert numerics.curves[1].skipped_steps == 3
    assert (numerics.problem, numerics.note) == ("", "")
    assert [numerics.flag(number) for number in (1, 2)] == ["", ""]


def test_one_that_learns_otherwise_is_flagged_alone(tmp_path: Path) -> None:
    numerics = check(tmp_path, Trainings({FAST: 8.9}))
    assert "8 standard deviations from fp32's 8.1" in numerics.flag(1)
    assert numerics.flag(2) == ""


def test_a_baseline_in_float32_is_its_own_reference_and_trained_no_fourth_time(tmp_path: Path) -> None:
    trainings = Trainings()
    numerics = check(tmp_path, trainings, (1, 0), [trial(0, of=FLOAT32), trial(1, of=FAST)])
    assert [name for _, _, name in trainings.asked] == ["reference-0", "reference-1", "reference-2", "trial-0001"]
    assert numerics.curves[0] == numerics.references[0]
    assert numerics.is_checked(0)


def test_a_space_without_precision_is_compared_with_float32_too(tmp_path: Path) -> None:
    bare = Configuration.exact(48, 8, {name: value for name, value in SETTINGS.items() if name != "precision"})
    trainings = Trainings()
    check(tmp_path, trainings, (0,), [trial(0, of=bare)])
    assert trainings.asked[0][0].values["precision"] == "fp32"
    assert trainings.asked[-1] == (bare, 0, "trial-0000")


def test_nothing_is_trained_twice_by_a_resumed_search(tmp_path: Path) -> None:
    class Killed(Trainings):
        def __call__(self, of: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().__call__(of, seed, folder)

    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, Killed())
    assert sorted(path.parent.name for path in tmp_path.rglob(KEPT)) == ["reference-0", "reference-1"]
    second = Trainings()
    numerics = check(tmp_path, second)
    assert [name for _, _, name in second.asked] == ["reference-2", "trial-0001", "trial-0002"]
    third = Trainings()
    assert check(tmp_path, third) == numerics == check(tmp_path / "new", Trainings())
    assert third.asked == []


@pytest.mark.parametrize("damage", ["half", "another configuration", "another seed", "fewer steps"])
def test_what_is_kept_counts_only_for_the_training_that_it_was(tmp_path: Path, damage: str) -> None:
    check(tmp_path, Trainings())
    path = tmp_path / "trial-0001" / KEPT
    kept: dict[str, Any] = {"configuration": FAST.to_dict(), "seed": 0, "curve": Curve((8.0,) * STEPS).to_dict()}
    match damage:
        case "another configuration":
            kept["configuration"] = LEAN.to_dict()
        case "another seed":
            kept["seed"] = 1
        case "fewer steps":
            kept["curve"] = Curve((8.0,) * (STEPS - 1)).to_dict()
    write_json(path, kept)
    if damage == "half":
        path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    again = Trainings()
    check(tmp_path, again)
    assert [name for _, _, name in again.asked] == ["trial-0001"]


def test_a_baseline_too_large_for_float32_is_stood_in_for_by_the_first_finalist(tmp_path: Path) -> None:
    too_large = Failure(Outcome.OUT_OF_MEMORY, "tried to allocate 2 GiB")
    trainings = Trainings({FLOAT32: too_large, FAST: 8.1})
    trials = [Trial(0, BASELINE, out_of_memory(BASELINE)), *TRIALS[1:3]]
    numerics = check(tmp_path, trainings, trials=trials)
    instead = configuration(16, precision="fp32", optimizer="adamw_torch", workers=2)
    assert [(of, name) for of, _, name in trainings.asked[:4]] == [
        (FLOAT32, "reference-0"),
        *[(instead, f"stand-in-{seed}") for seed in SEEDS],
    ]
    assert numerics.reference_settings == instead.values
    assert numerics.is_checked(1)
    assert stand_in(FAST, BASELINE) == instead


def test_where_float32_cannot_be_trained_nothing_is_judged(tmp_path: Path) -> None:
    too_large = Failure(Outcome.OUT_OF_MEMORY, "tried to allocate 2 GiB")
    trainings = Trainings({FLOAT32: too_large, stand_in(FAST, BASELINE): too_large})
    numerics = check(tmp_path, trainings)
    assert numerics.problem == "fp32 with seed 0 cannot be trained: out of memory: tried to allocate 2 GiB"
    assert len(trainings.asked) == 2, "what cannot be compared is not trained"
    assert not numerics.is_checked(1)
    assert numerics.flag(1) == ""


def test_a_crash_of_float32_is_no_reason_for_a_stand_in(tmp_path: Path) -> None:
    trainings = Trainings({FLOAT32: Failure(Outcome.CRASHED, "RuntimeError: no")})
    assert check(tmp_path, trainings).problem == "fp32 with seed 0 cannot be trained: crashed: RuntimeError: no"
    assert len(trainings.asked) == 1


def test_a_float32_that_is_not_finite_itself_judges_nothing(tmp_path: Path) -> None:
    numerics = check(tmp_path, Trainings({FLOAT32: float("nan")}))
    assert numerics.problem == "fp32's own loss became nan in step 2 with seed 0"
    assert numerics.curves == {}


def test_a_finalist_that_fails_is_not_checked_and_tried_again_by_a_resumed_search(tmp_path: Path) -> None:
    numerics = check(tmp_path, Trainings({FAST: Failure(Outcome.TIMED_OUT, "not done after 60 s")}))
    assert numerics.curves[1].problem == "timed out: not done after 60 s"
    assert not numerics.is_checked(1)
    assert numerics.is_checked(2)
    resumed = Trainings()
    assert check(tmp_path, resumed).is_checked(1)
    assert [name for _, _, name in resumed.asked] == ["trial-0001"]


def test_losses_that_are_added_up_over_micro_steps_are_compared_by_their_mean(tmp_path: Path) -> None:
    numerics = check(tmp_path, Trainings({FAST: 8.1, LEAN: 8.9}, sums=True))
    assert [round(reference.level, 6) for reference in numerics.references] == [8.0, 8.1, 8.2]
    assert round(numerics.curves[1].level, 6) == 8.1
    assert numerics.flag(1) == ""
    assert "8 standard deviations" in numerics.flag(2)
    assert "added up" in numerics.note


def test_the_time_is_predicted_from_measured_steps() -> None:
    step = {number: item.final.step_time_s or 0.0 for number, item in enumerate(TRIALS)}
    assert predicted_seconds(TRIALS, (1, 2)) == pytest.approx(STEPS * (3 * step[3] + step[1] + step[2]))
    assert predicted_seconds(TRIALS[:3], (1,)) == pytest.approx(STEPS * (3 * step[0] + step[1]))
    lost = [Trial(0, BASELINE, out_of_memory(BASELINE)), *TRIALS[1:3]]
    assert predicted_seconds(lost, (1, 2)) == pytest.approx(STEPS * (3 * step[2] + step[1] + step[2]))
    assert predicted_seconds(lost[:1], (0,)) == float("inf")
    own = [trial(0, 10.0, of=FLOAT32), TRIALS[1]]
    assert predicted_seconds(own, (0, 1)) == pytest.approx(STEPS * (3 * step[0] + step[1]))


def test_float32_of_float32_is_itself() -> None:
    assert in_float32(FLOAT32) == FLOAT32
    assert in_float32(BASELINE) == FLOAT32
