"""What a report claims: no more than its numbers support, and in each state what to do next."""

import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.core import Interval, Outcome, Trial
from autotune.core.prospect import OptimalityGap
from autotune.core.request import tuning_request
from autotune.core.stop_reason import StopKind, StopReason
from autotune.report.checks import checks
from autotune.report.claim import Claim, State, Verdict, claim_fields, claim_of, headline, verdict
from autotune.report.summary import answer_lines
from autotune.study.result import SearchResult
from tests.makers import MIB, completed, configuration, ended, out_of_memory, result, trial, verification

SLOW, FAST = configuration(8), configuration(16)
LOST = Trial(1, FAST, out_of_memory(FAST))

DEFAULTS = "the Trainer's defaults (8x6, fp32)"


ALL_TESTED = StopReason(StopKind.ALL_TESTED)


def compared(
    gain: float, apart: float = 0.0, before: int = 900, after: int = 500, again: bool = True, **options: Any
) -> SearchResult:
    """A study whose second trial is so many times as fast as its baseline, with these peaks in MiB.

    again: both were measured again in pairs, whose ratios differ by this share from the gain.
    """
    facts = {SLOW: (10.0, before * MIB, 0.0), FAST: (10.0 * gain, after * MIB, apart)}
    return result(
        [
            trial(number, speed, peak, of=of, confirmed=speed if again else None, apart=apart, spread=1e-4)
            for number, (of, (speed, peak, apart)) in enumerate(facts.items())
        ],
        request=tuning_request("m", 48, **options),
    )


def tie(after: int) -> SearchResult:
    """A study whose answer is as fast as its baseline within a percent, in three rounds."""
    speeds = {SLOW: (10.0, 10.04, 10.02), FAST: (10.05, 10.02, 10.06)}
    rounds = {
        of: tuple(completed(of, rate, round=n) for n, rate in enumerate(rates, 1)) for of, rates in speeds.items()
    }
    peaks = {SLOW: 900, FAST: after}
    return result(
        [replace(trial(n, 10.0, peaks[of] * MIB, of=of), confirmations=rounds[of]) for n, of in enumerate((SLOW, FAST))]
    )


@pytest.mark.parametrize(
    ("study", "state", "text"),
    [
        (compared(4.0), State.IMPROVED, f"4.00x as fast as {DEFAULTS}, with 44% less memory"),
        (compared(1.08, after=900), State.IMPROVED, f"1.08x as fast as {DEFAULTS}"),
        (
            compared(1.25, after=1900),
            State.NO_BASELINE,
            "The Trainer's defaults cannot be compared; this configuration runs",
        ),
        (compared(2.0, before=100, after=350), State.IMPROVED, f"2.00x as fast as {DEFAULTS}, with 3.5x the memory"),
        (compared(1.5, 0.01), State.IMPROVED, f"About 1.5x as fast as {DEFAULTS}, with 44% less memory"),
        (
            compared(1.5, again=False, timeout="10m"),
            State.IMPROVED,
            f"About 1.5x as fast as {DEFAULTS}, with 44% less memory, not proven",
        ),
        (compared(1.01, 0.01), State.NOISY, "Too noisy to tell whether anything is faster"),
        (tie(890), State.KEPT, "No faster settings found in 2 trials"),
        (compared(1.0), State.IMPROVED, f"As fast as {DEFAULTS}, with 44% less memory"),
        (compared(0.5), State.KEPT, "No faster settings found in 2 trials"),
        (result([trial(0)]), State.ALONE, "Nothing to compare yet"),
        (result([trial(0), LOST]), State.ALONE, "Only the Trainer's defaults run here"),
        (result([Trial(0, SLOW, out_of_memory(SLOW))]), State.NO_ANSWER, "Nothing fits into 1000 MiB"),
        (result([Trial(0, SLOW, ended(Outcome.CRASHED))]), State.NO_ANSWER, "No configuration completed"),
        (replace(result(), trials=[]), State.NO_ANSWER, "Nothing was measured"),
    ],
)
def test_each_state_has_its_headline(study: SearchResult, state: State, text: str) -> None:
    if state is State.NO_BASELINE:
        study = replace(study, trials=[Trial(0, SLOW, out_of_memory(SLOW)), study.trials[1]])
    claim = claim_of(study)
    assert (claim.state, claim.headline) == (state, text)
    assert headline(study).startswith(text)
    assert headline(study).endswith(".")


SMALL = configuration(4)
DOES_NOT_FIT = [Trial(0, SLOW, out_of_memory(SLOW)), trial(1, 10.0, of=SMALL, confirmed=10.0)]


def test_settings_that_do_not_fit_are_compared_by_the_least_change_that_does() -> None:
    study = result([*DOES_NOT_FIT, trial(2, 40.0, of=FAST, confirmed=40.0)])
    claim = claim_of(study)
    assert (claim.state, claim.headline) == (
        State.IMPROVED,
        "4.00x as fast as the least change of the Trainer's defaults that fits",
    )
    assert claim.details[0].startswith("The Trainer's defaults do not fit (out of memory")
    assert claim.details[0].endswith("compared with micro-batch 4.")
    assert study.speedup is not None
    assert study.speedup_reason == ""
    data = study.to_dict()
    assert (data["substitute"]["number"], data["baseline"]["number"]) == (1, 0)
    assert "4.00x trial 1" in repr(study)


def test_the_least_change_that_fits_is_the_answer_if_nothing_is_faster() -> None:
    study = result([*DOES_NOT_FIT, trial(2, 5.0, of=FAST, confirmed=5.0)])
    claim = claim_of(study)
    assert study.best.number == 1
    assert claim.state is State.NO_BASELINE
    assert "the least change of them that fits" in claim.details[1]
    assert study.speedup is None
    assert study.speedup_reason.startswith("the baseline does not run here")
    assert "no speed-up" in repr(study)


@pytest.mark.parametrize(
    ("gain", "is_proven", "sure"),
    [
        (Interval(1.58, 1.50, 1.66), True, Verdict.SOLID),
        (Interval(1.58, 1.50, 1.66), False, Verdict.NOT_PROVEN),
        (Interval(1.46, 1.26, 1.70), True, Verdict.ROUGH),
        (Interval(1.01, 0.98, 1.04), True, Verdict.SOLID),
        (Interval(1.33, 0.98, 1.68), True, Verdict.NOISY),
        (Interval(1.33, 0.98, 1.68), False, Verdict.NOT_PROVEN),
    ],
)
def test_the_verdict_follows_its_rules(gain: Interval, is_proven: bool, sure: Verdict) -> None:
    assert verdict(gain, is_proven, "your settings")[0] is sure


def test_settings_that_nobody_stated_are_called_the_trainers_defaults() -> None:
    unstated, stated = result(), result(request=tuning_request("gpt2-mini", 48, args={"weight_decay": 0.1}))
    own_trainer = result(workload=replace(result().workload, user_objects=True))
    assert headline(unstated).startswith(f"4.00x as fast as {DEFAULTS}")
    for of_user in (stated, own_trainer):
        assert headline(of_user).startswith("4.00x as fast as your settings (95% ")
        assert (of_user.baseline_name, of_user.baseline_word) == ("your settings", "yours")
    assert claim_fields(unstated)["baseline_name"] == "the Trainer's defaults"
    assert answer_lines(unstated)[2].split() == ["defaults", "tuned"]


def test_the_time_saved_and_the_interval_are_below_the_headline() -> None:
    time, measured = claim_of(compared(4.0)).details
    assert re.fullmatch(r"A step takes 1\.20 s instead of 4\.80 s: every hour of training becomes 15 minutes\.", time)
    assert measured.startswith("2 pairs of measurements, one of it and one of the Trainer's defaults after the other; ")


def test_what_was_verified_is_the_headline() -> None:
    claim = claim_of(result(verification=verification(result().best.configuration, speed_up=2.5)))
    assert claim.headline.startswith(f"2.50x as fast as {DEFAULTS}")
    assert claim.gain == pytest.approx(2.5)
    assert claim.details[0].startswith(
        "A step takes 1.00 s instead of 2.50 s: every hour of training becomes 24 minutes"
    )
    assert "Verified by plain trainings in 6 rounds" in claim.details[1]


@pytest.mark.parametrize("held", [True, False])
def test_what_was_verified_counts_whether_the_promise_held_or_not(held: bool) -> None:
    known = verification(result().best.configuration, held, speed_up=1.3)
    assert claim_of(result(verification=known)).gain == pytest.approx(1.3)


def test_a_refuted_speed_up_is_claimed_no_longer() -> None:
    best = result().best.configuration
    for speed_up in (1.02, 0.8):
        study = result(verification=verification(best, False, speed_up))
        claim = claim_of(study)
        assert (claim.state, claim.headline) == (
            State.REFUTED,
            "Plain trainings were not faster than with the Trainer's defaults",
        )
        assert f"{speed_up:.2f}x" in claim.details[0]
        assert (study.best.number, study.changes_settings) == (0, False), "nor is it applied"
        assert any(check.title == "It did not hold in plain trainings." for check in checks(study))


def test_where_your_settings_do_not_fit_the_least_change_that_does_is_the_answer_in_place_of_what_was_refuted() -> None:
    trials = [*DOES_NOT_FIT, trial(2, 40.0, of=FAST, confirmed=40.0)]
    study = result(trials, verification=verification(FAST, False, 0.8))
    assert study.refuted is trials[2]
    assert (study.best.number, study.best.feasible, study.changes_settings) == (1, True, True)
    claim = claim_of(study)
    assert claim.state is State.NO_BASELINE
    assert "the least change of them that fits" in claim.details[1]


def test_a_verification_that_cannot_tell_or_is_of_another_answer_leaves_the_headline() -> None:
    own = claim_of(result())
    best = result().best.configuration
    for known in (verification(best, None), verification(configuration(1)), {"verdict": {}}):
        assert claim_of(result(verification=known)) == own


def test_nothing_is_claimed_of_one_trial_and_the_search_goes_on_with_more_time() -> None:
    request = tuning_request("gpt2-mini", 48, device="cpu", timeout="30s")
    claim = claim_of(result([trial(0)], request=request, stop=StopReason(StopKind.TIME, {"limit_s": 30.0})))
    assert (claim.gain, claim.verdict) == (None, Verdict.NONE)
    assert claim.command == "autotune search gpt2-mini --global-batch-size 48 --device cpu --timeout 3m"
    assert "%" not in headline(result([trial(0)]))


def test_a_search_that_left_nothing_to_gain_asks_for_no_more() -> None:
    finished = replace(compared(0.5), prospects={1: OptimalityGap(0.005, 0.01, 20)})
    assert claim_of(finished).command == ""
    assert claim_of(replace(finished, prospects={1: OptimalityGap(0.3, 0.3, 20)})).command


def test_too_noisy_says_how_many_rounds_would_tell() -> None:
    rival = trial(1, 12.0, of=configuration(16, precision="bf16"), confirmed=12.0, apart=0.05)
    claim = claim_of(result([trial(0, 10.0, of=SLOW, confirmed=10.0), rival]))
    assert (claim.state, claim.verdict) == (State.NOISY, Verdict.NOISY)
    assert claim.command.endswith(" --confirmation-rounds 3")


def test_a_search_without_time_for_its_baseline_was_not_cut_off() -> None:
    claim = claim_of(replace(result(), complete=False, stop=StopReason(StopKind.NO_TIME, detail="no time for it")))
    assert claim.cut_off == ""


@pytest.mark.parametrize("kind", [StopKind.INTERRUPTED, StopKind.FAILED])
@pytest.mark.parametrize(
    ("study", "text"),
    [
        (compared(4.0), f"Interrupted after 2 trials: 4.00x as fast as {DEFAULTS}, with 44% less memory so far"),
        (compared(0.5), "Interrupted after 2 trials: no faster settings found so far"),
        (result([trial(0)]), "Interrupted after 1 trial: nothing to compare yet"),
        (replace(result(), trials=[]), "Interrupted: nothing was measured"),
    ],
)
def test_an_interrupted_search_goes_on_with_the_same_command(study: SearchResult, text: str, kind: StopKind) -> None:
    stop = StopReason(kind, detail="no device is left to measure on: it was unplugged")
    claim: Claim = claim_of(replace(study, complete=False, stop=stop))
    assert claim.headline == text
    assert claim.advice == "The same command continues where it stopped."
    assert claim.command.startswith("autotune search ")


def test_what_is_faster_and_learns_differently_does_not_win() -> None:
    rival = replace(trial(1, 40.0, of=FAST, confirmed=40.0), disqualified_reason="its loss differs")
    claim = claim_of(result([trial(0, 10.0, of=SLOW, confirmed=10.0), rival]))
    assert claim.headline == "The Trainer's defaults are kept: what is faster trains otherwise"
    assert claim.verdict is Verdict.SOLID


def test_nobody_is_told_to_search_on_where_all_was_tried() -> None:
    kept = compared(0.5)
    assert claim_of(kept).command.startswith("autotune search ")
    assert claim_of(replace(kept, stop=ALL_TESTED)).command == ""
