"""Promised against measured speed-up, as people and programs are told of it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.commands.verify.result import Verification, judged, verification_lines
from autotune.core import Interval, Measurement, Outcome, Step, Trial
from autotune.core.note import Note, NoteKind
from autotune.core.promise_verdict import PromiseKind, PromiseVerdict
from autotune.core.warning import ResultWarning, WarningKind
from tests.makers import ALLOWED, MIB, completed, configuration, ended, trial

BASELINE = trial(0, 30.0, confirmed=30.0)
BEST = trial(1, 45.0, of=configuration(16), confirmed=45.0)
"""Promised: 1.5 times as fast."""

WARNING = ResultWarning(WarningKind.OTHER_PROCESSES, {"cores": 1.8})


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


def rounds(*speeds: float, disturbed: Sequence[int] = (), **facts: Any) -> tuple[Measurement, ...]:
    """Plain trainings at these speeds; disturbed: numbers of rounds beside which something else ran."""
    return tuple(
        plain(speed, round=number, observed_warnings=(WARNING,) * (number in disturbed), **facts)
        for number, speed in enumerate(speeds, 1)
    )


def verification(answer: Sequence[Measurement], yours: Sequence[Measurement] = (), **facts: Any) -> Verification:
    yours = yours or rounds(*[30.0] * len(answer))
    return Verification("small", BEST, BASELINE, answer, yours, **facts)


# The rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promised", "measured", "verdict"),
    [
        ((1.5, 1.4, 1.6), (1.5, 1.45, 1.55), PromiseKind.HELD),
        ((1.5, 1.4, 1.6), (1.38, 1.36, 1.41), PromiseKind.HELD),  # they overlap
        ((1.5, 1.4, 1.6), (1.36, 1.35, 1.37), PromiseKind.HELD),  # below by less than 3 %
        ((1.5, 1.4, 1.6), (1.33, 1.32, 1.34), PromiseKind.SLOWER),
        ((1.5, 1.4, 1.6), (0.9, 0.6, 1.2), PromiseKind.SLOWER),  # wide, but surely below
        ((1.5, 1.4, 1.6), (1.3, 0.9, 1.7), PromiseKind.WIDE_INTERVAL),  # holds both
        ((1.5, 1.4, 1.6), (1.2, 0.98, 1.45), PromiseKind.SLOWER),  # holds 1 and not 1.5
        ((1.5, 1.4, 1.6), (1.5, 1.3, 1.7), PromiseKind.WIDE_INTERVAL),  # 27 % wide
        ((1.5, 1.4, 1.6), (1.5, 1.36, 1.65), PromiseKind.HELD),
        ((1.5, 1.4, 1.6), (2.0, 1.7, 2.3), PromiseKind.MORE_THAN_HELD),  # wide, but surely above
        ((1.0, 0.97, 1.03), (0.99, 0.97, 1.01), PromiseKind.HELD),  # less memory, as fast
        ((1.0, 0.97, 1.03), (0.92, 0.9, 0.94), PromiseKind.SLOWER),
        ((1.1, 0.7, 1.5), (0.92, 0.9, 0.94), PromiseKind.SLOWER),  # slower than the user's settings
        ((0.9, 0.88, 0.92), (0.9, 0.89, 0.91), PromiseKind.HELD),  # promised to be slower
        ((1.5, 0.0, float("inf")), (1.4, 1.38, 1.42), PromiseKind.HELD),  # a promise of a single step
    ],
)
def test_a_speed_up_holds_where_it_is_not_below_the_promise_and_no_slower_than_the_user_s_settings(
    promised: tuple[float, float, float], measured: tuple[float, float, float], verdict: PromiseKind
) -> None:
    assert judged(Interval(*promised), Interval(*measured)) is verdict


# A verification -------------------------------------------------------------------------------------------------------


def test_what_slows_both_in_a_round_cancels() -> None:
    found = verification(rounds(45.0, 30.0, 22.0, 46.0), rounds(30.0, 20.0, 14.6, 30.7))
    assert found.measured == pytest.approx(1.5, abs=0.01)
    assert found.measured is not None
    assert found.measured.relative_width < 0.02
    assert found.promised == pytest.approx(1.5)
    assert (found.verdict.kind, found.held, found.exit_code) == (PromiseKind.HELD, True, 0)


@pytest.mark.parametrize(
    ("answer", "yours", "verdict", "held", "code"),
    [
        (rounds(36.0, 36.1, 36.0, 35.9), (), PromiseKind.SLOWER, False, 1),
        (rounds(60.0, 60.1, 60.0, 59.9), (), PromiseKind.MORE_THAN_HELD, True, 0),
        (rounds(30.0, 60.0, 35.0, 55.0), (), PromiseKind.WIDE_INTERVAL, None, 4),
        (rounds(45.0, peak_bytes=ALLOWED + MIB), (), PromiseKind.ANSWER_OVER_LIMIT, False, 1),
        (rounds(45.0, allocator_retries=3), (), PromiseKind.ANSWER_OVER_LIMIT, False, 1),
        ((ended(Outcome.OUT_OF_MEMORY, round=1),), (), PromiseKind.ANSWER_OUT_OF_MEMORY, False, 1),
        ((ended(Outcome.CRASHED, round=1),), (), PromiseKind.ANSWER_FAILED, False, 1),
        ((), (ended(Outcome.CRASHED, round=1),), PromiseKind.YOURS_FAILED, None, 4),
        ((), rounds(30.0, allocator_retries=3), PromiseKind.YOURS_OVER_LIMIT, None, 4),
        ((), rounds(30.0), PromiseKind.NOT_TRAINED, None, 4),
    ],
)
def test_a_verdict_has_its_kind_and_exit_code(
    answer: Sequence[Measurement], yours: Sequence[Measurement], verdict: PromiseKind, held: bool | None, code: int
) -> None:
    found = verification(answer, yours)
    assert (found.verdict.kind, found.held, found.exit_code) == (verdict, held, code)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (PromiseVerdict.from_dict(data["verdict"]), data["held"]) == (found.verdict, held)
    assert bool(found.verdict.advice) == (not held)


def test_disturbed_rounds_do_not_count_where_three_are_left() -> None:
    found = verification(rounds(45.0, 10.0, 45.1, 44.9, 80.0, disturbed=[2, 5]))
    assert found.verdict.kind is PromiseKind.HELD
    assert found.measured == pytest.approx(1.5, abs=0.01)
    assert found.disturbances == (WARNING,)


def test_a_machine_that_was_disturbed_tells_nothing_however_close_its_speeds_are() -> None:
    for speed in (10.0, 45.0):
        found = verification(rounds(*[speed] * 5, disturbed=[1, 2, 3]))
        assert (found.verdict.kind, found.exit_code) == (PromiseKind.DISTURBED, 4)
        assert "disturbed in 3 of 5 rounds" in found.verdict.text
        assert found.verdict.advice.startswith("Close other programs")


def test_fewer_than_three_rounds_tell_nothing_however_quiet_they_were() -> None:
    found = verification(rounds(45.0, 45.0))
    assert (found.verdict.kind, found.exit_code) == (PromiseKind.FEW_ROUNDS, 4)
    assert "only 2 rounds each; 1.50x" in found.verdict.text


def test_a_single_round_has_no_upper_end() -> None:
    text = verification(rounds(45.0, count=1)).verdict.text
    assert re.match(r"cannot tell: only 1 round each; 1\.\d\dx .* \(95% interval \d\.\d\dx or more\); promised ", text)


def test_the_answer_alone_is_trained_where_the_users_settings_do_not_run() -> None:
    found = Verification("small", BEST, None, rounds(45.0, 45.0))
    assert (found.verdict.kind, found.promised, found.measured) == (PromiseKind.ANSWER_ALONE, None, None)
    assert found.to_dict()["measured"]["yours"] is None


def test_there_is_nothing_to_verify_where_the_answer_is_the_users_settings() -> None:
    found = Verification("small", BASELINE, BASELINE)
    assert (found.verdict.kind, found.held, found.exit_code) == (PromiseKind.OWN_SETTINGS, True, 0)
    assert verification_lines(found) == ["Nothing to verify: the answer is the baseline."]


def test_all_step_times_of_both_sides_are_kept() -> None:
    data = verification(rounds(45.0, 45.0, 45.0, count=7)).to_dict()
    assert [len(each["step_times_s"]) for each in data["rounds"]["answer"]] == [7, 7, 7]
    assert [each["round"] for each in data["rounds"]["yours"]] == [1, 2, 3]
    assert data["measured"]["speedup_low"] <= data["measured"]["speedup"] <= data["measured"]["speedup_high"]
    assert data["promised"]["speedup"] == pytest.approx(1.5)


def test_a_run_of_announced_length_counts_what_compiling_takes() -> None:
    compiling = {"training_steps": 100, "compile_s": 100.0}
    assert verification(rounds(45.0, 45.0, 45.0, **compiling)).measured == pytest.approx(1.5 * 0.516, rel=0.01)


def test_the_texts_are_the_golden_ones_in_eighty_columns(golden: Callable[[str, str], None]) -> None:
    cold = rounds(44.0, 44.5, 44.2, 44.1, disturbed=[2], peak_bytes=550 * MIB)
    unknown = Trial(1, configuration(), replace(completed(), peak_device_bytes=None, peak_reserved_bytes=None))
    crashed = (ended(Outcome.CRASHED, reason="RuntimeError: " + "word " * 50, round=1),)
    texts = [
        verification(cold, notes=(Note(NoteKind.OTHER_MACHINE, detail="torch 1"),)),
        verification(rounds(30.0, 60.0, 35.0, 55.0)),
        verification(rounds(31.0, 31.0, 31.1, 31.0)),
        Verification("small", unknown, None, crashed),
    ]
    lines = [line for text in texts for line in (*verification_lines(text), "")]
    assert max(map(len, lines)) <= 80
    golden("verify.txt", "\n".join(lines))
