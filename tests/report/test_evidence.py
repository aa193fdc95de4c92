"""What a trial's numbers stand on, in words."""

from dataclasses import replace

from autotune.report.evidence import measurement_lines
from tests.makers import completed, configuration, step, trial


def test_a_step_is_told_in_a_unit_that_shows_it() -> None:
    of = configuration(48)
    for seconds, said in ((0.21, "a step of 210.0 ms: "), (2.5, "a step of 2.500 s: ")):
        steps = (step(seconds, samples=48),) * 6
        one = replace(trial(0, of=of), measurement=replace(completed(of), steps=steps))
        assert measurement_lines(one)[1].startswith(said)
