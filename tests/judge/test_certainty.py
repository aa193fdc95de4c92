"""Why a speed-up is open, and what would tell."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.core import Configuration, Outcome, Trial
from autotune.judge.certainty import GapKind, SpeedupGap, speedup_gap
from autotune.judge.standing import is_open
from tests.makers import completed, configuration, ended, standing_of, trial

SPEED = "samples_per_second"
FP32, BF16 = configuration(8, precision="fp32"), configuration(8, precision="bf16")
WORKERS = configuration(8, precision="fp32", workers=2)


def rivals(other: Configuration, gains: Sequence[float]) -> list[Trial]:
    """The baseline at 10 samples / second and a rival that was so many times as fast, a round each."""
    own, its = (
        [completed(of, 10 * gain) for gain in all_of] for of, all_of in ((FP32, [1.0] * len(gains)), (other, gains))
    )
    return [
        replace(trial(0, 10.0, of=FP32), confirmations=tuple(own)),
        replace(trial(1, 10.0 * gains[0], of=other), confirmations=tuple(its)),
    ]


def gap_of(trials: Sequence[Trial], timeout_s: float | None = None) -> SpeedupGap:
    gap = speedup_gap(standing_of(trials), timeout_s)
    assert gap is not None
    return gap


def test_a_certain_speed_up_and_one_that_is_known_to_be_none_need_no_reason() -> None:
    assert speedup_gap(standing_of(rivals(BF16, [1.5, 1.52, 1.49]))) is None
    assert speedup_gap(standing_of(rivals(WORKERS, [1.001, 0.999, 1.002]))) is None
    assert speedup_gap(standing_of(rivals(BF16, [0.9, 0.91, 0.92]))) is None


@pytest.mark.parametrize("other", [BF16, WORKERS], ids=["learns differently", "learns alike"])
def test_an_open_speed_up_says_so_and_how_many_rounds_would_tell(other: Configuration) -> None:
    gains = [1.1, 1.3, 1.5, 0.1]
    trials = rivals(other, gains)
    gain = standing_of(trials).gain(trials[1])
    assert gain is not None
    assert is_open(gain)
    gap = gap_of(trials)
    assert "cannot tell whether trial 1 is faster" in gap.text
    assert f"{gain.low:.2f} to {gain.high:.2f}" in gap.text
    assert gap.rounds == 6
    assert "--confirmation-rounds 6" in gap.advice
    assert "--timeout" not in gap.advice
    assert "longer --timeout" in gap_of(trials, timeout_s=60.0).advice
    repeated = rivals(other, gains[:3] * 2)
    assert standing_of(repeated).answer is repeated[1], "as many that vary alike do tell"


def test_where_no_number_of_rounds_would_tell_a_quieter_machine_is_advised() -> None:
    gap = gap_of(rivals(WORKERS, [2.5, 0.5, 1.0, 1.0]))
    assert (gap.kind, gap.rounds) == (GapKind.TOO_NOISY, None)
    assert "quieter machine" in gap.advice


def test_what_was_not_measured_side_by_side_is_to_be() -> None:
    probed = [trial(0, 10.0, of=FP32, spread=0.3), trial(1, 12.0, of=WORKERS, spread=0.3)]
    assert gap_of(probed).rounds == 4
    assert "a longer --timeout" in gap_of(probed, timeout_s=60.0).advice


def test_a_missing_speed_up_has_its_reason() -> None:
    lost = Trial(0, FP32, ended(Outcome.OUT_OF_MEMORY))
    assert standing_of([lost, trial(1, of=WORKERS)]).gain(trial(1, of=WORKERS)) is None
    assert gap_of([lost, trial(1, of=WORKERS)]).kind is GapKind.NO_BASELINE
    assert gap_of([lost]).kind is GapKind.NOTHING_TO_COMPARE
    assert gap_of([]).kind is GapKind.NOTHING_TO_COMPARE
