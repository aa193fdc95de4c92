"""Configurations that earlier trials rule out without a probe."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.judge.dominance import NEVER_PROBED, crash_notes, crashing_values, implied_by
from tests.makers import completed, ended, out_of_memory, trial, warned
from tests.makers import configuration as at

KIND = {"optimizer": "adafactor", "precision": "bf16"}
FULL = {"checkpointing": "full"}


def oom(**facts: Any) -> Measurement:
    """Out of memory on the device, unless told where."""
    return out_of_memory(at(), **facts)


def misconfigured(requested: dict[str, Any], shown: dict[str, Any]) -> Measurement:
    return ended(Outcome.MISCONFIGURED, asked=requested, settings=shown)


# (measured, accumulation follows from a global batch of 48; how it ended; ruled out by it; still open)
IMPLIED: dict[str, tuple[Configuration, Measurement | None, list[Configuration], list[Configuration]]] = {
    "the same or a larger micro-batch does not fit either": (at(12), None, [at(12), at(16), at(24)], [at(8)]),
    "values that need at least as much memory do not fit either": (
        at(12, checkpointing="every_2nd"),
        None,
        [at(12, checkpointing="none"), at(16, checkpointing="none")],
        [at(12, **FULL), at(24, **FULL)],
    ),
    "how data is loaded does not matter to the device": (
        at(12, workers=2),
        None,
        [at(12, workers=0), at(12, workers=4), at(12, pin_memory=True)],
        [],
    ),
    "met while accumulating it rules out only what accumulates too": (at(12), None, [at(24)], [at(48)]),
    "a warning leaves all others open": (
        at(12),
        oom(observed_warnings=warned("another process on the device: python (7)")),
        [at(12)],
        [at(16)],
    ),
    "another number of ranks stays open": (at(12), None, [], [Configuration(12, 2, 2, at(12).settings)]),
    "workers count where the host's memory ran out": (
        at(12, workers=2),
        oom(where="host"),
        [at(12, workers=2, pin_memory=True), at(16, workers=4)],
        [at(12, workers=0), at(24, workers=1)],
    ),
    "what the host had no room for leaves what is on the device open": (
        at(8, checkpointing="offload"),
        ended(Outcome.OUT_OF_MEMORY, where="host", accumulation_steps=6),
        [at(8, checkpointing="offload", workers=2)],
        [at(8, checkpointing="none")],
    ),
    "a loss that is not finite rules out what learns alike": (
        at(8, precision="fp16"),
        ended(Outcome.NON_FINITE_LOSS),
        [at(1, precision="fp16", **FULL), at(4, precision="fp16", workers=2)],
        [at(8, precision="bf16"), at(8, precision="fp16", optimizer="sgd")],
    ),
    "what is unsupported stays so at other sizes and loading": (
        at(8, **KIND),
        ended(Outcome.UNSUPPORTED),
        [at(2, workers=2, pin_memory=True, **KIND)],
        [at(8, **KIND | {"optimizer": "sgd"}), at(8, **KIND | {"precision": "fp32"}), at(8, **KIND | FULL)],
    ),
    "a forward that is unsupported is so with any optimizer": (
        at(8, sdpa_kernel="flash", optimizer="sgd"),
        ended(Outcome.UNSUPPORTED, where="forward"),
        [at(8, sdpa_kernel="flash", optimizer="adafactor")],
        [],
    ),
    "a baseline that was never probed": (
        at(8, workers=64),
        ended(Outcome.UNSUPPORTED, where=NEVER_PROBED),
        [at(8, workers=64)],
        [at(8)],
    ),
    "what was misconfigured rules out the values that did not take": (
        at(8, precision="fp16"),
        misconfigured({"precision": "fp16", "workers": 0}, {"precision": "fp32", "workers": 0}),
        [at(1, precision="fp16", workers=2)],
        [at(8, precision="bf16"), at(8, precision="fp16", optimizer="sgd")],
    ),
    "what could not be read back is no mismatch": (
        at(8, precision="fp16"),
        misconfigured({"precision": "fp16", "optimizer": "sgd"}, {"precision": "fp32", "optimizer": None}),
        [at(4, precision="fp16")],
        [],
    ),
}


@pytest.mark.parametrize("name", IMPLIED)
def test_a_trial_rules_out(name: str) -> None:
    measured, measurement, ruled_out, still_open = IMPLIED[name]
    trial = Trial(3, measured, measurement or out_of_memory(measured))
    assert [item for item in ruled_out if implied_by(item, [trial]) is None] == []
    assert [item for item in still_open if implied_by(item, [trial]) is not None] == []


@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_answers_for_itself_however_it_ended_and_most_for_nothing_else(outcome: Outcome) -> None:
    measurement = completed() if outcome is Outcome.COMPLETED else ended(outcome)
    trial = Trial(3, at(8), measurement)
    assert implied_by(at(8), [trial]) is trial
    if outcome in (Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.CRASHED):
        assert implied_by(at(16), [trial]) is None
        assert implied_by(at(8, workers=1), [trial]) is None


# Crashes --------------------------------------------------------------------------------------------------------


def crashes(*configurations: Configuration) -> list[Trial]:
    return [Trial(10 + number, of, ended(Outcome.CRASHED)) for number, of in enumerate(configurations)]


def test_a_value_with_three_crashes_and_no_completed_trial_is_ruled_out() -> None:
    ran = [trial(0, of=at(8)), trial(1, of=at(16, precision="bf16"))]
    crashed = crashes(*(at(micro, optimizer="adafactor") for micro in (4, 8, 16)))
    other = at(24, optimizer="adafactor", precision="bf16")
    assert implied_by(other, [*ran, *crashed]) is crashed[0]
    assert implied_by(other, [*ran, *crashed[:2]]) is None
    assert implied_by(at(24), [*ran, *crashed]) is None
    completed_too = trial(2, of=at(12, optimizer="adafactor"))
    assert implied_by(other, [*ran, completed_too, *crashed]) is None
    assert implied_by(other, crashed) is None, "where nothing ran no value is to blame"


def test_of_values_that_crash_together_and_never_completed_both_are_needed_until_it_is_known_which() -> None:
    ran = [trial(0, of=at(8))]
    both = {"optimizer": "adafactor", "precision": "bf16"}
    crashed = crashes(*(at(micro, **both) for micro in (4, 12, 16)))
    assert implied_by(at(24, **both), [*ran, *crashed]) is crashed[0]
    innocent = at(24, precision="bf16")
    assert implied_by(innocent, [*ran, *crashed]) is None
    known = [*ran, trial(1, of=innocent), *crashed]
    assert crashing_values(known) == [({"optimizer": "adafactor"}, crashed[0])]
    assert implied_by(at(24, optimizer="adafactor"), known) is crashed[0]


def test_a_size_whose_shape_does_not_fit_is_not_tried_again() -> None:
    reasons = {
        size: f"RuntimeError: The size of tensor a ({size}) must match the size of tensor b (8)" for size in (4, 16)
    }

    def misfit(size: int, **settings: Any) -> Trial:
        return Trial(10 + size, at(size, **settings), ended(Outcome.CRASHED, reason=reasons[size]))

    ran = [trial(0, of=at(8)), trial(1, of=at(8, precision="bf16"))]
    first, second = misfit(16), misfit(4)
    assert implied_by(at(16, precision="bf16"), [*ran, first]) is None
    known = [*ran, first, misfit(16, precision="bf16")]
    assert implied_by(at(16, optimizer="adafactor"), known) is first
    assert implied_by(at(4), known) is None
    assert implied_by(at(4, precision="bf16"), [*ran, first, second]) is second
    [note] = crash_notes(known)
    assert "first in trial 26: micro_batch_size 16" in note.text
    assert "2 crashes" in note.text
    assert "only trials with batches of 8 completed" in note.text
    other = [replace(each, measurement=ended(Outcome.CRASHED, reason="segmentation fault")) for each in known[2:]]
    assert implied_by(at(16, optimizer="adafactor"), [*ran, *other]) is None
