"""Text of an explanation, for a terminal of 80 columns."""

from collections.abc import Iterator, Sequence
from itertools import chain

from autotune.commands.explain.explanation import Explanation
from autotune.commands.explain.reasons import STEP, BoundKind, parts, step_split
from autotune.commands.layout import ratio_text
from autotune.core.configuration import word
from autotune.core.interval import Interval
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes, format_duration
from autotune.report.markdown import wrapped
from autotune.report.trial_text import outcome_text, speed_text

ORDER = (
    "first settings without which the answer does not run (what saves memory precedes what needs it), then by the loss "
    "without each in the first round, largest first; what does not run yet comes later"
)
"""Order of the path's settings."""


PARTS = {"micro_steps": "micro-steps", "optimizer": "optimizer", "data_wait": "data wait", "trainer": "Trainer"}
"""Labels of the parts of a step in a change."""

SMALLEST_CHANGE = 0.02
"""Share of the step, or of the peak: smaller changes are not a reason."""


def explanation_lines(explanation: Explanation) -> list[str]:
    """The whole explanation for a terminal."""
    lines = wrapped(f"{explanation.name}: {sentence(explanation)}")
    for title, sentences in _sections(explanation):
        lines += ["", *wrapped(title)]
        lines += [line for sentence in sentences for line in wrapped(sentence, "  ", "    ")]
    for title, rows in _tables(explanation):
        table = [(title, *_sides(explanation).values()), *((f"  {label}", *cells) for label, *cells in rows)]
        lines += ["", *(f"{label:<38}{''.join(f'{cell:>20}' for cell in cells)}" for label, *cells in table)]
    return lines


# Sentences --------------------------------------------------------------------------------------------------------


def sentence(explanation: Explanation) -> str:
    """The gains, and whether they make up the proven speed-up."""
    again, total, confirmed = explanation.remeasured, explanation.total, explanation.confirmed
    if again is None:
        return f"There is no speed-up to explain. {explanation.kept}"
    if not again.answer.feasible:
        return f"The answer did not run this time ({outcome_text(again.answer)}): no path was measured."
    if explanation.product is None or total is None:
        return "Only the answer itself runs: nothing on the way to it can be compared."
    gains = f"The gains multiply to {ratio_text(total)}"
    if explanation.within is None or confirmed is None:
        why = explanation.confirmed_gap or "the path does not start at the baseline"
        return f"{gains}; there is no proven speed-up to compare it with: {why}."
    if explanation.within:
        return f"{gains}, inside the proven {ratio_text(confirmed)}."
    apart = total.low > confirmed.high or total.high < confirmed.low
    overlap = "and the intervals do not overlap" if apart else "but the intervals overlap"
    return f"{gains}, outside the proven {ratio_text(confirmed)}, {overlap}."


def changes(before: Trial, after: Trial) -> str:
    """`micro-steps 30 % shorter, peak 20 MiB less`: the part that changed the step most comes first.

    Micro-steps are those of one step together, so that different sizes can be compared.
    """
    old, new = parts(before.final), parts(after.final)
    smallest = SMALLEST_CHANGE * max(before.final.step_time_s or 0.0, 1e-12)
    texts = []
    for part in sorted(old, key=lambda part: abs(new[part] - old[part]), reverse=True):
        more = new[part] - old[part]
        if part == "micro_steps" and abs(more) > smallest and old[part] > 0:
            texts.append(f"{PARTS[part]} {abs(more / old[part]):.0%} {'longer' if more > 0 else 'shorter'}")
        elif abs(more) > smallest:
            texts.append(f"{PARTS[part]} {format_duration(abs(more))} {'more' if more > 0 else 'less'}")
    if before.peak_bytes and after.peak_bytes:
        more = after.peak_bytes - before.peak_bytes
        if abs(more) > SMALLEST_CHANGE * before.peak_bytes:
            texts.append(f"peak {format_bytes(abs(more))} {'more' if more > 0 else 'less'}")
    return ", ".join(texts) or "nothing of the step or the peak changed much"


def verdict(gain: Interval | None) -> str:
    """Verdict on a change: it won, lost, or made no difference beyond noise."""
    if gain is None:
        return "cannot be compared"
    if gain.low > 1:
        return "won"
    return "lost" if gain.high < 1 else "no difference beyond noise"


def _change_text(settings: Sequence[str], before: Trial, after: Trial) -> str:
    """`precision fp32 -> bf16, micro_batch_size 4 -> 8`."""
    old, new = before.configuration.values, after.configuration.values
    return ", ".join(f"{name} {word(old[name])} -> {word(new[name])}" for name in settings)


def _failure(explanation: Explanation, trial: Trial) -> str:
    """Outcome of a configuration that did not run, with the study's trial that implies it."""
    number = explanation.remeasured and explanation.remeasured.implied.get(trial.configuration)
    implied = "" if number is None else f" (not run again: implied by trial {number} of the search)"
    return f"{outcome_text(trial)}{implied}"


def _bounds(explanation: Explanation) -> list[str]:
    lines = []
    for name, whose in _sides(explanation).items():
        if (bound := explanation.bounds.get(name)) is not None:
            use = explanation.utilization.get(name)
            arithmetic = f"; arithmetic at {use.text}" if use and use.text and bound.kind is not BoundKind.INPUT else ""
            lines.append(f"{whose}: {bound}{arithmetic}")
    return lines


# Sections: a title and its sentences ------------------------------------------------------------------------------


def _sections(explanation: Explanation) -> list[tuple[str, list[str]]]:
    again = explanation.remeasured
    failed = again.failed if again else ()
    sections = {
        "The path, one setting a step": _path(explanation),
        "The answer without each setting": _ablations(explanation),
        "What did not run on the way": [f"{each.configuration}: {_failure(explanation, each)}" for each in failed],
        "What bounds a step": _bounds(explanation),
        "Warnings and notes": _warnings(explanation),
    }
    return [(title, sentences) for title, sentences in sections.items() if sentences]


def _path(explanation: Explanation) -> list[str]:
    again, steps = explanation.remeasured, explanation.steps
    if again is None:
        return []
    if explanation.from_the_baseline:
        lines = [f"baseline: {again.start.configuration}: {_speed_and_peak(again.start)}"]
    else:
        lines = [
            f"the baseline does not run here: {outcome_text(explanation.baseline)}",
            f"the nearest to the baseline that runs: {again.start.configuration}: {_speed_and_peak(again.start)}",
        ]
    for number, step in enumerate(steps, 1):
        why = f": {changes(step.before, step.after)}" if step.gain is not None else ""
        together = " (only together)" if len(step.settings) > 1 else ""
        end = f"{verdict(step.gain)}; now {_speed_and_peak(step.after)}"
        change = _change_text(step.settings, step.before, step.after)
        lines.append(f"{number}. {change}: {ratio_text(step.gain)}{why}{together}; {end}")
    if steps:
        gains = " x ".join("-" if step.gain is None else f"{step.gain:.3f}" for step in steps)
        product = f" = {explanation.product:.3f} over {counted(again.rounds, 'round')}" if explanation.product else ""
        lines += [f"{gains}{product}", f"order: {ORDER}"]
    return lines


def _ablations(explanation: Explanation) -> list[str]:
    answer = explanation.remeasured.answer if explanation.remeasured else explanation.best
    lines = []
    for row in explanation.ablations:
        change = _change_text((row.setting, *row.also), row.without, explanation.best)
        if row.gain is None:
            lines.append(f"{change}: needed: without it {outcome_text(row.without)}")
        else:
            why = changes(row.without, answer)
            lines.append(f"{change}: {ratio_text(row.gain)}: {why}; {verdict(row.gain)}")
    return lines


def _warnings(explanation: Explanation) -> list[str]:
    trials = [explanation.remeasured.start] if explanation.remeasured else []
    trials += [*(step.after for step in explanation.steps), *(row.without for row in explanation.ablations)]
    warnings = {trial.configuration: trial.final.warnings for trial in trials}
    lines = [f"warnings of {which}: {'; '.join(map(str, texts))}" for which, texts in warnings.items() if texts]
    return [*lines, *(f"note: {note}" for note in explanation.notes)]


# Tables -----------------------------------------------------------------------------------------------------------


def _sides(explanation: Explanation) -> dict[str, str]:
    """Name in JSON -> heading: of the user's settings and the answer, if these are two."""
    sides = {"baseline": "the baseline", "answer": "the answer"}
    return sides if explanation.remeasured else {"baseline": sides["baseline"]}


def _tables(explanation: Explanation) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    sides = _sides(explanation)
    ends = (explanation.baseline, explanation.best)[: len(sides)]
    splits = [step_split(trial.final) for trial in ends]
    times = {label: [split[name] for split in splits] for name, label in STEP.items()}
    rows: list[tuple[str, ...]] = [
        (label, *map(format_duration, seconds)) for label, seconds in times.items() if {*seconds} != {None}
    ]
    if rows:
        yield "Time of a step", rows
    measured: tuple[str, ...] = ("measured peak", *(format_bytes(trial.peak_bytes) for trial in ends))
    peaks = [peak and peak.to_dict() for peak in map(explanation.memory.get, sides)]
    if parts := next((peak["split"] for peak in peaks if peak), None):
        rows = [
            (part.replace("_", " "), *(format_bytes(peak["split"][part] if peak else None) for peak in peaks))
            for part in parts
        ]
        rows.append(("estimated peak", *(format_bytes(peak["peak_bytes"] if peak else None) for peak in peaks)))
        yield "Estimated memory by use", [*rows, measured]
    stages = [trial.measurement.stage_peak_bytes for trial in ends]
    rows = [(stage, *(format_bytes(end.get(stage)) for end in stages)) for stage in dict.fromkeys(chain(*stages))]
    if rows:
        yield "Measured peak memory by stage", [*rows, measured]


def _speed_and_peak(trial: Trial) -> str:
    if trial.samples_per_second is None:
        return outcome_text(trial)
    return f"{speed_text(trial)} samples/s, peak {format_bytes(trial.peak_bytes)}"
