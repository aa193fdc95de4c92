"""Why a search has no answer: the cause, its exit code, and the advice that fits it."""

from dataclasses import replace

import pytest

from autotune.core import AutotuneError, Measurement, Outcome, Trial
from autotune.core.errors import NothingFits, SearchFailed
from autotune.core.no_answer import why_no_answer
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory, trial


def error_of(*measurements: Measurement) -> AutotuneError:
    trials = [Trial(number, configuration(8, workers=number), item) for number, item in enumerate(measurements)]
    return why_no_answer(trials, ALLOWED)


LACKING = out_of_memory(configuration())


def test_only_memory_is_called_nothing_fits_and_the_leanest_is_named() -> None:
    leaner = replace(LACKING, held_bytes=1009 * MIB, refused_bytes=1 * MIB)
    error = error_of(replace(LACKING, held_bytes=3000 * MIB), leaner, ended(Outcome.UNSUPPORTED))
    assert isinstance(error, NothingFits)
    assert error.exit_code == 3
    assert "needed at least 1010 MiB" in error.message
    assert "--memory-limit" in error.advice


def test_what_completed_above_what_is_allowed_lacks_memory_too() -> None:
    above = replace(completed(peak_bytes=1200 * MIB), allowed_bytes=ALLOWED)
    assert not above.feasible
    error = error_of(above, LACKING)
    assert isinstance(error, NothingFits)
    assert "needed at least 1001 MiB" in error.message


def test_a_need_that_nobody_knows_is_not_called_0_bytes() -> None:
    killed = ended(Outcome.OUT_OF_MEMORY, where="host", reason="killed by the kernel: the machine's memory ran out")
    error = error_of(killed, killed)
    assert isinstance(error, NothingFits)
    assert "killed by the kernel" in error.message
    assert "needed at least" not in error.message
    assert "needed at least 1001 MiB" in error_of(killed, LACKING).message


def test_workers_without_shared_memory_are_not_called_too_large_for_the_device() -> None:
    error = error_of(*2 * [replace(LACKING, where="data", reason="/dev/shm is full")])
    assert isinstance(error, SearchFailed)
    assert "/dev/shm is full" in error.message
    assert "--fix workers=0" in error.advice
    assert "--fresh" in error.advice, "the same command keeps the trials that failed"


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [
        (Outcome.TIMED_OUT, "--probe-timeout"),
        (Outcome.UNSUPPORTED, "--fix"),
        (Outcome.MISCONFIGURED, "Remove what changes it"),
        (Outcome.CRASHED, "--fresh"),
        (Outcome.NON_FINITE_LOSS, "learning rate"),
    ],
)
def test_a_baseline_that_ends_otherwise_is_the_cause_and_never_nothing_fits(outcome: Outcome, advice: str) -> None:
    error = error_of(ended(outcome, reason="precision fp16 became fp32"), LACKING, LACKING)
    assert isinstance(error, SearchFailed)
    assert "your own settings" in error.message
    assert "precision fp16 became fp32" in error.message
    assert "2 ran out of memory" in error.message
    assert advice in error.advice
    assert "--memory-limit" not in error.advice


def test_a_trial_that_fitted_and_did_not_end_is_the_cause_where_the_baseline_lacks_memory() -> None:
    error = error_of(LACKING, ended(Outcome.TIMED_OUT, reason="not done after 60 s"))
    assert isinstance(error, SearchFailed)
    assert "trial 1 (" in error.message
    assert "--probe-timeout" in error.advice


def test_before_any_trial_and_where_all_are_barred_it_is_said_so() -> None:
    assert why_no_answer([], ALLOWED).exit_code == 1
    disqualified_reason = why_no_answer([replace(trial(), disqualified_reason="its loss differs")], ALLOWED)
    assert (disqualified_reason.exit_code, "--allow-loss-difference" in disqualified_reason.advice) == (1, True)


def test_a_loss_that_is_not_finite_in_fp32_is_not_to_be_tried_in_fp32() -> None:
    diverged = ended(Outcome.NON_FINITE_LOSS)
    for precision, is_advised in (("fp32", False), ("bf16", True)):
        of = configuration(8, precision=precision)
        advice = why_no_answer([Trial(0, of, diverged)], ALLOWED).advice
        assert ("--fix precision=fp32" in advice) == is_advised
