"""Promised against got, as people and programs are told of it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.commands.verify.result import Verification, verification_lines
from autotune.core import Measurement, Outcome, Step, Trial
from tests.makers import ALLOWED, MIB, completed, configuration, ended, trial

PROMISED = trial(1, 40.0, confirmed=40.0)


def plain(speed: float, peak_bytes: int = 500 * MIB, count: int = 20, samples: int = 48, **facts: Any) -> Measurement:
    """A plain training at this speed."""
    parts = dict.fromkeys(("first_s", "middle_s", "last_s", "optimizer_s"), 0.0)
    times = [samples / speed * (1 + 0.01 * (-1) ** number) for number in range(count)]
    return Measurement(
        Outcome.COMPLETED,
        steps=tuple(Step(seconds=time, data_wait_s=0.001, samples=samples, tokens=0, **parts) for time in times),
        allowed_bytes=ALLOWED,
        peak_device_bytes=peak_bytes,
        **facts,
    )


@pytest.mark.parametrize(
    ("got", "held", "said"),
    [
        (plain(40.1), True, r"Held: 0\.2 % faster than promised, inside the interval of ± \d\.\d %\."),
        (plain(50.0), True, r"More than held: 25\.0 % faster than promised, outside"),
        (plain(30.0), False, r"Not held: 25\.0 % slower than promised, outside"),
        (plain(40.0, count=1), None, r"Open: "),
        (plain(40.0, ALLOWED + MIB), False, r"Not held: .* \(peak 1001 MiB of"),
        (plain(40.0, allocator_retries=3), False, r"Not held: "),
        (ended(Outcome.OUT_OF_MEMORY, reason="No."), False, r"Not held: out of memory: No\."),
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


def test_the_table_is_the_golden_one_in_eighty_columns(golden: Callable[[str, str], None]) -> None:
    surroundings = {"sm_clock_mhz": 1500.0, "power_w": 250.0}
    warm = trial(1, 40.0, observed_warnings=("it was warm",), surroundings=surroundings)
    cold = plain(44.0, 550 * MIB, observed_warnings=("it is cold",), surroundings=surroundings)
    unknown = Trial(1, configuration(), replace(completed(), peak_device_bytes=None, peak_reserved_bytes=None))
    crashed = ended(Outcome.CRASHED, reason="RuntimeError: " + "word " * 50)
    texts = [Verification(warm, cold, ("other versions",), promised_mfu=0.5), Verification(unknown, crashed)]
    lines = [line for text in texts for line in (*verification_lines(text), "")]
    assert max(map(len, lines)) <= 80
    golden("verify.txt", "\n".join(lines))


def test_one_line_shows_the_speeds_and_whether_they_were_held() -> None:
    told = repr(Verification(trial(3, 10.0), completed(samples_per_second=9.0)))
    assert re.match(r"<Verification of trial 3: 9\S* .*samples/s, promised 10\S* .*\. Not held: 10\.0 % slower", told)
    assert "\n" not in told
