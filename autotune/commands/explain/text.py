"""Text of an explanation: for a terminal of 80 columns, and as Markdown."""

from collections.abc import Iterator

from autotune.commands.explain.explanation import ORDER, Explanation, ablation_change, step_sentence
from autotune.commands.explain.reasons import changes, step_split, verdict
from autotune.commands.layout import ratio_text
from autotune.core.configuration import word
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes, format_duration
from autotune.report.markdown import markdown_table, markdown_text, wrapped
from autotune.report.trial_text import outcome_text, speed_text
from autotune.space.settings import SETTINGS

STEP = {
    "step_time_s": "step",
    "data_wait_s": "waiting for data",
    "first_micro_step_s": "first micro-step",
    "middle_micro_step_s": "each middle one",
    "last_micro_step_s": "last micro-step",
    "forward_time_s": "all forward passes",
    "backward_time_s": "all backward passes",
    "optimizer_step_time_s": "clipping, optimizer",
    "overhead_time_s": "Trainer's own work",
}
"""Labels of the parts of a step."""


def explanation_lines(explanation: Explanation) -> list[str]:
    """The whole explanation for a terminal."""
    lines = wrapped(f"{explanation.name}: {explanation.sentence}")
    for title, sentences in _sections(explanation):
        lines += ["", *wrapped(title)]
        lines += [line for sentence in sentences for line in wrapped(sentence, "  ", "    ")]
    for title, rows in _tables(explanation):
        lines += ["", "{:<38}{:>20}{:>20}".format(title, *HEAD)]
        lines += ["  {:<36}{:>20}{:>20}".format(*row) for row in rows]
    return lines


def explanation_markdown(explanation: Explanation) -> str:
    """explanation.md."""
    title = f"# Where the speed-up of {markdown_text(explanation.name)} comes from"
    parts = [title, "", markdown_text(explanation.sentence), ""]
    for title, sentences in _sections(explanation):
        parts += [f"## {title}", "", *(f"- {markdown_text(sentence)}" for sentence in sentences), ""]
    for title, rows in _tables(explanation):
        parts += [f"## {title}", "", *markdown_table([("", *HEAD), *rows]), ""]
    return "\n".join(parts)


# Sections: a title and its sentences ------------------------------------------------------------------------------


def _sections(explanation: Explanation) -> list[tuple[str, list[str]]]:
    again = explanation.remeasured
    failed = again.failed if again else ()
    bounds = {"your settings": explanation.bound_before[1], "the answer": explanation.bound[1]}
    sections = {
        "The path, one setting a step": _path(explanation),
        "The answer without each setting": _ablations(explanation),
        "What did not run on the way": [f"{each.configuration}: {explanation.failure_text(each)}" for each in failed],
        "What bounds a step": [f"{name}: {why}" for name, why in bounds.items() if why],
        "The settings": _settings(explanation),
        "Warnings and notes": _warnings(explanation),
    }
    return [(title, sentences) for title, sentences in sections.items() if sentences]


def _path(explanation: Explanation) -> list[str]:
    again, steps = explanation.remeasured, explanation.steps
    if again is None:
        return []
    if explanation.from_the_baseline:
        lines = [f"your settings: {again.start.configuration}: {_speed_and_peak(again.start)}"]
    else:
        lines = [
            f"your settings do not run here: {outcome_text(explanation.baseline)}",
            f"the nearest to your settings that runs: {again.start.configuration}: {_speed_and_peak(again.start)}",
        ]
    for number, step in enumerate(steps, 1):
        together = " (only together)" if len(step.settings) > 1 else ""
        end = f"{verdict(step.gain)}; now {_speed_and_peak(step.after)}"
        lines.append(f"{number}. {step_sentence(step)}{together}; {end}")
    if steps:
        gains = " x ".join("-" if step.gain is None else f"{step.gain:.3f}" for step in steps)
        product = f" = {explanation.product:.3f} over {counted(again.rounds, 'round')}" if explanation.product else ""
        lines += [f"{gains}{product}", f"order: {ORDER}"]
    return lines


def _ablations(explanation: Explanation) -> list[str]:
    lines = []
    for row in explanation.ablations:
        change = ablation_change(row, explanation.best)
        if row.gain is None:
            lines.append(f"{change}: needed: without it {outcome_text(row.without)}")
        else:
            why = changes(
                row.without, explanation.best if explanation.remeasured is None else explanation.remeasured.answer
            )
            lines.append(f"{change}: {ratio_text(row.gain)}: {why}; {verdict(row.gain)}")
    return lines


def _settings(explanation: Explanation) -> list[str]:
    baseline, lines = explanation.baseline.configuration.values, []
    for name, value in explanation.best.configuration.values.items():
        origin = "fixed" if name in explanation.fixed else "as you had it"
        if name not in explanation.fixed and value != baseline.get(name):
            origin = f"yours: {word(baseline[name]) if name in baseline else '-'}"
        lines.append(f"{name} {word(value)} ({origin}). {SETTINGS[name].summary}")
    return lines


def _warnings(explanation: Explanation) -> list[str]:
    trials = [explanation.remeasured.start] if explanation.remeasured else []
    trials += [*(step.after for step in explanation.steps), *(row.without for row in explanation.ablations)]
    warnings = {trial.configuration: trial.final.warnings for trial in trials}
    return [
        *(
            f"warnings of {configuration}: {'; '.join(map(str, texts))}"
            for configuration, texts in warnings.items()
            if texts
        ),
        *(f"memory: {problem}" for problem in explanation.memory.problems),
        *(f"note: {note}" for note in explanation.notes),
    ]


# Tables -----------------------------------------------------------------------------------------------------------

HEAD = ("your settings", "the answer")

Row = tuple[str, ...]


def _tables(explanation: Explanation) -> Iterator[tuple[str, list[Row]]]:
    ends = (explanation.baseline, explanation.best)
    splits = [step_split(trial.final) for trial in ends]
    times = {label: [split[name] for split in splits] for name, label in STEP.items()}
    rows: list[Row] = [(label, *map(format_duration, pair)) for label, pair in times.items() if pair != [None, None]]
    if rows:
        yield "Time of a step", rows
    measured: Row = ("measured peak", *(format_bytes(trial.peak_bytes) for trial in ends))
    peaks = [explanation.memory.peaks.get(name) for name in ("baseline", "answer")]
    if parts := next((peak["split"] for peak in peaks if peak), None):
        rows = [
            (part.replace("_", " "), *(format_bytes(peak["split"][part] if peak else None) for peak in peaks))
            for part in parts
        ]
        rows.append(("estimated peak", *(format_bytes(peak["peak_bytes"] if peak else None) for peak in peaks)))
        yield "Estimated memory by use", [*rows, measured]
    stages = [trial.measurement.stage_peak_bytes for trial in ends]
    rows = [
        (stage, *(format_bytes(end.get(stage)) for end in stages)) for stage in dict.fromkeys([*stages[0], *stages[1]])
    ]
    if rows:
        yield "Measured peak memory by stage", [*rows, measured]


def _speed_and_peak(trial: Trial) -> str:
    if trial.samples_per_second is None:
        return outcome_text(trial)
    return f"{speed_text(trial)} samples/s, peak {format_bytes(trial.peak_bytes)}"
