"""What to know before relying on an answer, each with what to do about it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Outcome, Trial
from autotune.core.kept import KeptKind, KeptSetting
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.measurement import Measurement
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import OptimalityGap
from autotune.core.request import tuning_request
from autotune.core.sanity import SanityCheck, SanityProblem
from autotune.core.warning import ResultWarning, WarningKind
from autotune.report.checks import Check, checks, data_text
from autotune.study.result import SearchResult
from tests.makers import completed, configuration, gpu, result, trial, verification, with_setup
from tests.report.many import divided

SLOW, FAST = configuration(8), configuration(16)
BUSY = ResultWarning(WarningKind.OTHER_PROCESSES, {"cores": 1.6})
HELD = ResultWarning(WarningKind.HELD_MEMORY, {"bytes": 2**30})
FALLING = {number: Curve(tuple(9.0 - step / 10 for step in range(14))) for number in (1, 2, 3)}
FLAT = {number: Curve((9.0,) * 14) for number in (1, 2, 3)}
SANITY = SanityCheck(8, (8,), 0.1, 54 * 2**20, 0.2, peak_bytes={"evaluation": 210 * 2**20})


def named(study: SearchResult) -> dict[str, Check]:
    """Title -> check."""
    return {check.title: check for check in checks(study)}


def disturbed(*warnings: ResultWarning) -> SearchResult:
    """A study whose answer was measured with these warnings."""
    trials = [
        trial(0, 10.0, of=SLOW, confirmed=10.0),
        trial(1, 20.0, of=FAST, confirmed=20.0, observed_warnings=warnings),
    ]
    return result(trials)


def limited(trials: list[Trial]) -> SearchResult:
    """A study of these trials that had a time limit, so that what no pairs show may be its answer."""
    return result(trials, request=tuning_request("gpt2-mini", 48, device="cpu", timeout="10m"))


def verified(held: bool | None) -> SearchResult:
    """A study whose answer was verified with this result."""
    return result(verification=verification(result().best.configuration, held))


@pytest.mark.parametrize(
    ("study", "kind", "title", "words"),
    [
        (result(numerics=Numerics(FALLING, {1: FALLING})), "ok", "Losses match fp32's.", "8.000 against fp32's 8.000"),
        (result(numerics=Numerics(FALLING, {1: FLAT})), "warn", "Losses differ from fp32's.", "above fp32's"),
        (result(numerics=Numerics(FLAT, {1: FLAT})), "warn", "Too few steps to compare losses.", "fell too little"),
        (result(left_out=("losses",)), "warn", "Losses were not compared with fp32's.", "Run the same command again"),
        (
            result(numerics=Numerics(notes=(Note(NoteKind.BASELINE_FAILS), Note(NoteKind.LOSSES_NOT_POSSIBLE)))),
            *("warn", "Losses were not compared with fp32's.", "do not run here, and nothing else fits."),
        ),
        (
            result(numerics=Numerics(FALLING, {1: FALLING}, notes=(Note(NoteKind.LOSSES_ADDED_UP),))),
            *("ok", "Losses match fp32's.", "(random weights). With this model the Trainer's losses"),
        ),
        (
            result(numerics=Numerics(FALLING, {1: FALLING}, "the baseline"), left_out=("losses",)),
            *("ok", "Losses match the baseline's.", "Run the same command again to compare them with fp32's."),
        ),
        (result(sanity_check=SANITY), "ok", "It evaluates and saves.", "Checkpoint: 54 MiB in 0.2 s."),
        (
            result(sanity_check=replace(SANITY, eval_batch_size=4, eval_batches_tried=(8, 4))),
            *("warn", "Evaluation needs a smaller batch.", "set per_device_eval_batch_size=4"),
        ),
        (
            result(sanity_check=replace(SANITY, outputs_bytes=2**30)),
            *("warn", "Evaluation keeps more than fits.", "reduce them in preprocess_logits_for_metrics"),
        ),
        (
            result(sanity_check=replace(SANITY, evaluation_unchecked="no set")),
            *("ok", "It saves.", "yours was not checked: no set"),
        ),
        (
            result(sanity_check=replace(SANITY, problems=(SanityProblem("saving", Outcome.CRASHED, "no space"),))),
            *("warn", "Evaluating or saving fails.", "no space"),
        ),
        (verified(held=True), "ok", "Verified by plain trainings.", "Held: 3.90x as fast as the baseline"),
        (
            verified(held=False),
            "warn",
            "It did not hold in plain trainings.",
            "(3.90x to 4.10x). Search again on the machine",
        ),
        (
            verified(held=None),
            "note",
            "Not verified yet.",
            "Close other programs, then verify again with --seconds 120.",
        ),
        (
            result(),
            "note",
            "Precision changed.",
            "From fp32 to bf16. To keep the Trainer's, search again with `--keep-numerics`.",
        ),
        (disturbed(BUSY), "warn", "The machine was disturbed.", "quiet machine"),
        (disturbed(HELD), "warn", "Warning.", "This process still holds 1.00 GiB"),
        (result(left_out=("evaluation and checkpoint",)), "note", "Not everything was done.", "the same command again"),
        (
            result(prospects={2: OptimalityGap(0.2, 0.23, 268)}),
            *(
                "note",
                "There may be more to gain.",
                "Up to 23%, with 95% confidence. 3 of 271 configurations were tried.",
            ),
        ),
        (result(environment=gpu(device_count=4)), "warn", "Other GPUs are visible.", "CUDA_VISIBLE_DEVICES="),
    ],
)
def test_each_fact_has_its_kind_and_what_to_do(study: SearchResult, kind: str, title: str, words: str) -> None:
    check = named(study)[title]
    assert check.level == kind
    assert words in f"{check.text} {check.action}"


def test_what_is_well_comes_first_and_mere_notes_last() -> None:
    study = replace(disturbed(BUSY), sanity_check=SANITY, left_out=("the rest",))
    kinds = [check.level for check in checks(study)]
    assert kinds == sorted(kinds, key=("ok", "warn", "note").index)
    assert set(kinds) == {"ok", "warn", "note"}


@pytest.mark.parametrize(("again", "title"), [(True, "The speed-up is rough."), (False, "The speed-up is not proven.")])
def test_how_unsure_a_speed_up_is_is_said_once_and_with_a_cure(again: bool, title: str) -> None:
    rough = [
        trial(n, speed, of=of, confirmed=speed if again else None, apart=0.01 * n)
        for n, (of, speed) in enumerate({SLOW: 10.0, FAST: 20.0}.items())
    ]
    (check,) = [check for check in checks(result(rough) if again else limited(rough)) if "The speed-up" in check.title]
    assert check.title == title
    assert "`autotune verify gpt2-mini-causal-lm-gb48-cpu`" in check.action


def test_verify_is_named_with_the_folder_of_a_study_that_is_not_in_reports(tmp_path: Path) -> None:
    single = limited([trial(0, 10.0, of=SLOW), trial(1, 20.0, of=FAST)])
    places = {"reports/first": "first", "elsewhere/first": "elsewhere/first", str(tmp_path / "first"): single.name}
    for folder, word in places.items():
        check = named(replace(single, folder=Path(folder)))["The speed-up is not proven."]
        assert f"`autotune verify {word}`" in check.action


def test_the_share_of_a_speed_up_that_precision_alone_makes_is_told() -> None:
    both = trial(2, 80.0, confirmed=80.0, of=configuration(16, precision="bf16"))
    alone = trial(1, 60.0, of=configuration(8, precision="bf16"))
    study = result([trial(0, 40.0, confirmed=40.0, of=configuration(8)), alone, both])
    [told] = [check for check in checks(study) if check.title == "Precision changed."]
    assert told.text == "From fp32 to bf16, which alone is 1.5x as fast (trial 1)."


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.35, 0.02, "The baseline waited for data 35% of the time; 2 workers reduced that to 2%."),
        (0.35, 0.2, "A step waits for data 20% of its time."),
        (0.05, 0.02, ""),
    ],
)
def test_waiting_for_data_is_told_of_the_answer_or_else_of_the_baseline(before: float, after: float, text: str) -> None:
    def waiting(number: int, share: float, **settings: Any) -> Any:
        of = configuration(8, **settings)
        measured: Measurement = divided(completed(of))
        steps = [replace(step, data_wait_s=share * step.seconds) for step in measured.steps]
        return replace(trial(number, of=of), measurement=replace(measured, steps=tuple(steps)))

    assert data_text(waiting(1, after, workers=2), waiting(0, before)) == text


def test_a_trainer_of_the_users_and_several_ranks_are_checked_by_their_own_training() -> None:
    single = limited([trial(0, 10.0, of=SLOW), trial(1, 20.0, of=FAST)])
    own = replace(single, workload=replace(single.workload, user_objects=True))
    ranks = with_setup(single, processes=2)
    callback = "autotune.PromiseCallback"
    for study, command in ((single, "autotune verify"), (own, callback), (ranks, callback)):
        assert command in named(study)["The speed-up is not proven."].action


def test_a_report_tells_what_the_training_showed_and_advises_no_workers_that_repeat_a_stream() -> None:
    kept = KeptSetting(KeptKind.REPEATED, {"most": 1.0}, setting="workers")
    waiting = trial(0, 10.0, of=SLOW, kept=(kept,))
    measured = waiting.measurement
    steps = tuple(replace(step, data_wait_s=0.5 * step.seconds) for step in measured.steps)
    found = named(
        result(
            [replace(waiting, measurement=replace(measured, steps=steps))],
            notes=(Note(NoteKind.KEPT, detail=kept.text),),
        )
    )
    assert found["Seen in your training."].text.startswith("Your stream does not share")
    assert found["It waits for data."].action == "Prepare samples beforehand."
