"""Promised against got, as people and programs are told of it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.commands.verify.result import Verification, verification_lines
from autotune.core.measurement import Measurement, Outcome
from autotune.core.step import Step
from autotune.core.trial import Trial
from tests.makers import ALLOWED, MIB, completed, configuration, ended, trial

PROMISED = trial(1, 40.0, confirmed=40.0)


def plain(speed: float, peak_bytes: int = 500 * MIB, count: int = 20, samples: int = 48, **facts: Any) -> Measurement:
    """A plain training at this speed."""
    parts = dict.fromkeys(("first_s", "middle_s", "last_s", "optimizer_s"), 0.0)
    times = [samples / speed * (1 + 0.01 * (-1) ** number) for number in range(count)]
    return Measurement(
        Outcome.COMPLETED,
        steps=tuple(Step(seconds=one, data_wait_s=0.001, samples=samples, tokens=0, **parts) for one in times),
        allowed_bytes=ALLOWED,
        peak_device_bytes=peak_bytes,
        **facts,
    )


@pytest.mark.parametrize(
    ("got", "held", "said"),
    [
        (plain(40.1), True, r"Held: 0\.2 % faster than promised, inside the interval of ± \d\.\d %\."),
        (plain(39.9), True, r"Held: 0\.2 % slower than promised, inside the interval of ± \d\.\d %\."),
        (plain(50.0), True, r"More than held: 25\.0 % faster than promised, outside the interval of ± \d\.\d %\."),
        (
            plain(30.0),
            False,
            r"Not held: 25\.0 % slower than promised, outside the interval of ± \d\.\d %\.",
        ),
        (plain(40.0, count=1), None, r"Open: a single timed step has no interval"),
        (plain(40.0, ALLOWED + MIB), False, r"Not held: the run went to the limit of its memory \(peak 1001 MiB of"),
        (ended(Outcome.OUT_OF_MEMORY, reason="No."), False, r"Not held: out of memory: No\."),
        (
            ended(Outcome.TIMED_OUT, reason="not done after 700 s"),
            False,
            r"Not held: timed out: not done after 700 s\.",
        ),
    ],
)
def test_one_sentence_says_whether_the_promise_held(got: Measurement, held: bool | None, said: str) -> None:

    verification = Verification(PROMISED, got)
    assert verification.held is held
    assert re.match(said, verification.sentence), verification.sentence
    assert json.loads(json.dumps(verification.to_dict(), allow_nan=False))["held"] is held


def test_the_interval_of_the_difference_holds_the_noise_of_both() -> None:
    verification = Verification(PROMISED, plain(40.0))
    difference, got, promised = verification.difference, plain(40.0).samples_per_second, PROMISED.samples_per_second
    assert difference is not None
    assert got is not None
    assert promised is not None
    assert difference == pytest.approx(0.0, abs=1e-3)
    width = difference.high - difference.low
    assert max(got.relative_width, promised.relative_width) < width < got.relative_width + promised.relative_width


def test_the_table_shows_all_four_numbers_with_their_difference() -> None:
    lines = verification_lines(Verification(PROMISED, plain(44.0, 550 * MIB), ("it rained",)))
    table = {line[:18].strip(): line[18:].split() for line in lines[:5]}
    assert table[""] == ["promised", "got", "difference"]
    assert table["samples/s"][0].startswith("40.")
    assert table["samples/s"][-2:] == ["+10.0", "%"]
    assert table["step time"][-2:] == ["-9.1", "%"]
    assert table["peak memory"] == ["500", "MiB", "550", "MiB", "+10.0", "%"]
    assert table["data wait a step"] == ["0.0", "ms", "1.0", "ms", "-"]
    assert lines[-1] == "note: it rained"
    assert max(map(len, lines)) <= 80


def test_warnings_of_either_side_are_said() -> None:
    promised = trial(1, 40.0, observed_warnings=("it was warm",))
    lines = verification_lines(Verification(promised, plain(40.0, observed_warnings=("it is cold",))))
    assert lines[-2:] == ["warning of the promise: it was warm", "warning: it is cold"]


def test_unknown_numbers_are_dashes_and_the_promise_stays() -> None:
    promised = Trial(1, configuration(), replace(completed(), peak_device_bytes=None, peak_reserved_bytes=None))
    lines = verification_lines(Verification(promised, ended(Outcome.CRASHED, reason="RuntimeError: " + "word " * 50)))
    table = {line[:18].strip(): line[18:].split() for line in lines[1:5]}
    assert table["samples/s"][0].startswith("10.")
    assert table["samples/s"][-2:] == ["-", "-"]
    assert table["peak memory"] == ["-", "-", "-"]
    assert max(map(len, lines)) <= 80


def test_an_allocator_at_its_limit_is_no_promise_held() -> None:
    assert Verification(PROMISED, plain(40.0, allocator_retries=3)).held is False


def test_one_line_shows_the_speeds_and_whether_they_were_held() -> None:
    told = repr(Verification(trial(3, 10.0), completed(samples_per_second=9.0)))
    assert re.match(r"<Verification of trial 3: 9\S* .*samples/s, promised 10\S* .*\. Not held: 10\.0 % slower", told)
    assert "\n" not in told
