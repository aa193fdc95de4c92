"""The ladder from the user's settings to the answer goes through trials that were measured."""

from dataclasses import replace

import pytest

from autotune.core import Interval, Trial
from autotune.report.ladder import Rung, ladder
from tests.makers import configuration, out_of_memory, result, trial

BASE = configuration(8)
BF16 = configuration(8, precision="bf16")
BOTH = configuration(16, precision="bf16")
ALL = configuration(16, precision="bf16", workers=2)
BY_THE_WAY = configuration(16, precision="bf16", optimizer="sgd")


def labels(rungs: list[Rung]) -> list[str]:
    return [rung.label for rung in rungs]


def test_the_longest_way_through_measured_trials_is_taken() -> None:
    trials = [
        trial(0, 10.0, of=BASE, confirmed=10.0),
        trial(1, 14.0, of=BF16),
        trial(2, 15.0, of=BOTH),
        trial(3, 50.0, of=ALL, confirmed=50.0),
        trial(4, 20.0, of=BY_THE_WAY),
        Trial(5, configuration(16), out_of_memory(configuration(16))),
    ]
    rungs = ladder(result(trials))
    assert labels(rungs) == ["the Trainer's defaults", "bf16", "16x3", "2 workers"]
    assert [rung.trial for rung in rungs] == [0, 1, 2, 3]
    assert [rung.speed for rung in rungs] == pytest.approx([10, 14, 15, 50])
    assert rungs[1].gain == pytest.approx(1.4)


def test_settings_that_no_trial_changed_alone_share_a_rung() -> None:
    trials = [trial(0, 10.0, of=BASE, confirmed=10.0), trial(1, 20.0, of=ALL, confirmed=20.0)]
    assert labels(ladder(result(trials))) == ["the Trainer's defaults", "16x3, bf16, 2 workers"]


@pytest.mark.parametrize(
    ("gain", "mark"),
    [
        (Interval(1.42, 1.31, 1.53), ""),
        (Interval(1.09, 0.9, 1.3), "rough"),
        (Interval(1.02, 0.95, 1.1), "noise"),
        (Interval(0.8, 0.7, 0.9), ""),
    ],
)
def test_a_gain_whose_interval_holds_1_is_marked(gain: Interval, mark: str) -> None:
    assert Rung("bf16", 1.0, gain).mark == mark


def explained(end: Trial) -> dict[str, object]:
    """What `autotune explain` would write of the way through bf16 to this trial."""

    def node(of: object, speed: float) -> dict[str, object]:
        return {"configuration": of.to_dict(), "samples_per_second": speed}  # type: ignore[attr-defined]

    gain = {"gain": 1.3, "gain_low": 1.2, "gain_high": 1.4}
    path = [{"after": node(BF16, 13.0), **gain}, {"after": node(end.configuration, 19.0), **gain}]
    return {"start": node(BASE, 10.0), "path": path}


def test_what_explain_measured_replaces_the_trials_where_it_is_of_this_answer() -> None:
    best = trial(1, 20.0, of=BOTH, confirmed=20.0)
    study = result([trial(0, 10.0, of=BASE, confirmed=10.0), best])
    rungs = ladder(replace(study, explanation=explained(best)))
    assert labels(rungs) == ["the Trainer's defaults", "bf16", "16x3"]
    assert [rung.trial for rung in rungs] == [None, None, None]
    other = ladder(replace(study, explanation=explained(trial(1, of=ALL))))
    assert labels(other) == ["the Trainer's defaults", "16x3, bf16"], "of another answer"


def test_without_two_configurations_there_is_no_ladder() -> None:
    assert ladder(result([trial(0)])) == []
    assert ladder(result([Trial(0, BASE, out_of_memory(BASE)), trial(1, of=BF16)])) == []
