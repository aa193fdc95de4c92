"""Importance of settings, on trials that fit alone."""

from autotune.core import Outcome, Trial, Value
from autotune.report.figures.importance import draw
from tests.makers import completed, configuration, ended, out_of_memory, result


def made_trials() -> list[Trial]:
    """Precision decides, workers hardly, pin_memory not at all."""
    known: list[tuple[Value, Value, Value]] = [
        (precision, workers, pin)
        for precision in ("fp32", "bf16", "tf32")
        for workers in (0, 2)
        for pin in (False, True)
    ]
    made = []
    for number, (precision, workers, pin) in enumerate(known):
        of = configuration(8, precision=precision, workers=workers, pin_memory=pin)
        speed = {"fp32": 10.0, "tf32": 20.0, "bf16": 40.0}[str(precision)] + 0.1 * int(workers)
        made.append(Trial(number, of, completed(of, speed)))
    return made


def shares(trials: list[Trial]) -> dict[str, float]:
    drawing = draw(result(trials))
    if drawing is None:
        return {}
    axes = drawing.figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))


def test_what_decides_comes_first_and_all_make_one() -> None:
    found = shares(made_trials())
    assert next(iter(found)) == "precision"
    assert found["precision"] > 0.8
    assert set(found) == {"precision", "workers", "pin_memory"}
    assert abs(sum(found.values()) - 1) < 1e-9


def test_what_does_not_fit_has_no_part_in_it() -> None:
    trials = made_trials()
    lost = [configuration(48, optimizer="sgd"), configuration(24, checkpointing="full")]
    more = [Trial(50 + at, item, out_of_memory(item)) for at, item in enumerate(lost)]
    more.append(Trial(60, lost[0], ended(Outcome.NON_FINITE_LOSS)))
    assert shares([*trials, *more]) == shares(trials)


def test_few_trials_or_none_that_differ_say_nothing() -> None:
    assert not shares(made_trials()[:7])
    assert not shares([Trial(number, configuration(8), completed(configuration(8))) for number in range(10)])
