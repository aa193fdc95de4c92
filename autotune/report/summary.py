"""The answer in words and as plain data: lines for a terminal, summary.md, what `--json` prints."""

import json
from collections.abc import Sequence

from autotune.core import Trial
from autotune.core.errors import NothingFits
from autotune.core.no_answer import why_no_answer
from autotune.core.units import format_bytes, format_seconds, in_ranges, without_numbers
from autotune.report.device import study_parts
from autotune.report.evidence import evidence_lines, input_bound_text, numerics_lines, rehearsal_lines
from autotune.report.exports import YAML_FILE, answer_of, exports, switch_lines
from autotune.report.markdown import markdown_list, markdown_table, markdown_text, one_line
from autotune.report.snippets import WITHOUT_MASK, adapter_text, collator_text, mask_lines, script_lines
from autotune.report.trial_text import (
    difference,
    interval_text,
    is_same,
    outcome_text,
    range_text,
    role_text,
    speed_text,
    warnings_text,
)
from autotune.space.launch import accelerate_line, launch_line
from autotune.space.settings import SETTINGS, learning_differences
from autotune.study.objective import is_open, pays_from, speed_up
from autotune.study.result import SearchResult

SHORT = 8
"""Settings up to which a configuration is written in full on one line."""

LONGEST_CELL = 200
"""Characters of a cell in summary.md."""


# The answer -----------------------------------------------------------------------------------------------------------


def headline(result: SearchResult) -> str:
    """One sentence: the answer against the baseline."""
    best, baseline, speedup = result.best_trial, result.baseline_trial, result.measured_speedup
    if best is None:
        error = why_no_answer(result.trials, result.allowed_bytes)
        if not isinstance(error, NothingFits):
            return error.message
        return (
            f"Nothing fits: none of {len(result.trials)} trial(s) stayed within {format_bytes(result.allowed_bytes)}."
        )
    if speedup is None:
        return f"Your own settings cannot be compared: {result.speedup_reason}."
    if is_same(best, baseline):
        if not result.disqualified:
            return "Your own settings are the best that was found."
        if any(trial.disqualified_reason for trial, _ in result.disqualified):
            return "Your own settings are kept: what beats them does not learn as fp32 does."
        return "Your own settings are kept: cannot tell whether another configuration is faster."
    if result.request.objective == "memory":
        before = format_bytes(baseline.peak_bytes if baseline else None)
        faster = f"{speedup:.2f}x the speed of your settings (95 % interval {range_text(speedup)})"
        return f"{format_bytes(best.peak_bytes)} instead of {before}, {faster}."
    if is_open(speedup):
        return f"Cannot tell whether this is faster than your settings ({interval_text(speedup)})."
    if speedup.low <= 1:
        return f"As fast as your settings ({interval_text(speedup)})."
    digits = 1 if speedup >= 1.1 else 2
    return f"{speedup:.{digits}f}x faster than your settings (95 % interval {range_text(speedup)})."


def answer_lines(result: SearchResult) -> list[str]:
    """The end of a search for a terminal: headline, both configurations, warnings."""
    parts = [f"  {label:<10}{text}" for label, text in answer_parts(result)]
    return [headline(result), *parts, f"Why it ended: {result.stop_reason}."]


def answer_parts(result: SearchResult) -> list[tuple[str, str]]:
    """The lines below the headline, as (label, text); a line without a label continues the one before."""
    best, baseline, setup = result.best_trial, result.baseline_trial, result.best_setup
    parts: list[tuple[str, str]] = []
    if best is not None:
        peak = f"peak {format_bytes(best.peak_bytes)} of {format_bytes(result.allowed_bytes)} allowed"
        parts.append(("best", _best_text(best, baseline)))
        parts.append(("", f"{speed_text(best)} samples/s, {peak}{'' if best.confirmed else '; not confirmed'}"))
        if (use := result.utilizations.get(best.number)) and use.mfu is not None:
            parts.append(("uses", use.text))
    if baseline is not None:
        figures = f"{speed_text(baseline)} samples/s, peak {format_bytes(baseline.peak_bytes)}"
        failure = f"{baseline.final.outcome}: {baseline.final.reason}"
        parts.append(("baseline", _baseline_text(best, baseline)))
        parts.append(("", figures if baseline.feasible else failure))
    parts += [("not used", line) for line in _disqualified_lines(result)]
    if result.measured_speedup is not None and result.speedup_reason:
        parts.append(("speed-up", result.speedup_reason))
    if setup.variables or setup.processes > 1:
        parts.append(("with", launch_line(setup.processes, setup.variables)))
    if setup.processes > 1:
        parts.append(("or with", accelerate_line(setup.processes, setup.variables)))
    if best is not None and best.measurement.compile_s:
        parts.append(("compiling", compiling_text(best, result.trials)))
    if collator := collator_text(result.workload.task, setup.data_arguments):
        parts.append(("batches", f"data_collator={collator}"))
    if mask_lines(setup.data_arguments):
        parts.append(("batches", WITHOUT_MASK))
    if setup.switches:
        parts.append(("switches", ", ".join(switch_lines(setup.switches))))
    if setup.adapter:
        parts.append(("adapter", adapter_text(setup.adapter)))
    if best is not None and best.final.input_bound:
        parts.append(("data", input_bound_text(best.final)))
    losses = numerics_lines(result.numerics, best)
    parts += [("losses", line) for line in losses if f"losses {line}" not in result.study_warnings]
    parts += [("also", line) for line in rehearsal_lines(result.rehearsal)]
    parts += [("warning", warning) for warning in warnings(result)]
    if result.left_out:
        parts.append(("left out", f"{', '.join(result.left_out)}: no time left; run the same command again to do it"))
    if learned := changed_learning(result):
        parts.append(("note", f"learns differently from your settings: {learned}"))
    if result.device_note:
        parts.append(("note", result.device_note))
    return parts


def _best_text(best: Trial, baseline: Trial | None) -> str:
    """The answer by what differs from the baseline."""
    if baseline is None or is_same(best, baseline):
        return str(best.configuration)
    return f"{best.configuration.unlike(baseline.configuration)}; else as the baseline"


def _baseline_text(best: Trial | None, baseline: Trial) -> str:
    """The baseline, in full as far as that fits a line; of more settings those that the answer changes."""
    if best is None or len(baseline.configuration.settings) <= SHORT or is_same(best, baseline):
        return str(baseline.configuration)
    return f"{baseline.configuration.unlike(best.configuration)}; its other settings: see the report"


def _disqualified_lines(result: SearchResult) -> list[str]:
    """The fastest trial that could not win although it was faster than the answer, why, and how many more there are."""
    if not result.disqualified:
        return []
    (trial, reason), others = result.disqualified[0], len(result.disqualified) - 1
    baseline = result.baseline_trial
    gain = speed_up(trial, baseline, result.request.objective)[0] if baseline is not None else None
    lines = [
        f"trial {trial.number} ({difference(trial, result)}){f', {interval_text(gain)}' if gain else ''}: {reason}"
    ]
    if trial.disqualified_reason:
        lines.append("--allow-loss-difference lets it win")
    if others:
        lines.append(f"{others} more that {'was' if others == 1 else 'were'} faster: see the trials")
    return lines


def compiling_text(best: Trial, trials: Sequence[Trial]) -> str:
    """What compiling costs at a run's start, and from how many steps on it pays."""
    text = f"takes {format_seconds(best.measurement.compile_s)} at the start"
    if best.final.training_steps:
        share = 1 - best.final.after_compiling
        text += f", {share:.1%} of the time of your {best.final.training_steps} steps"
    steps = pays_from(best, trials)
    return f"{text}; it pays from {steps} steps on" if steps else text


def warnings(result: SearchResult) -> list[str]:
    """What speaks against trusting the result: warnings of the study, of the best trial, then of the baseline, each once.

    Those that differ in a number alone are one, with the range of the number."""
    best, baseline = result.best_trial, result.baseline_trial
    texts = [*result.study_warnings, *(best.final.warnings if best else ())]
    if baseline and best and not is_same(baseline, best):
        kinds = set(map(without_numbers, texts))
        texts += [
            warning if without_numbers(warning) in kinds else f"baseline: {warning}"
            for warning in baseline.final.warnings
        ]
    return list(in_ranges(texts))


def changed_learning(result: SearchResult) -> str:
    """The settings that change numerics and differ between the answer and the baseline, and in what they learn differently."""
    if result.best_trial is None or result.baseline_trial is None:
        return ""
    best, baseline = result.best_trial.configuration, result.baseline_trial.configuration
    values, before = best.values, baseline.values
    differences = {name: SETTINGS[name].differs(values[name]) for name in learning_differences(best, baseline)}
    return ", ".join(
        f"{name} {values[name]} instead of {before[name]}{f' ({how})' if how else ''}"
        for name, how in differences.items()
    )


# summary.md -----------------------------------------------------------------------------------------------------------


def summary(result: SearchResult) -> str:
    """summary.md: the answer, what to paste, every trial, what was ruled out, where it was measured."""
    best, setup = result.best_trial, result.best_setup
    parts = [f"# {markdown_text(result.name)}", "", markdown_text(headline(result)), ""]
    parts += ["With pictures, for a browser: [report.html](report.html).", ""]
    if best is not None:
        parts += _code("", *(" ".join(line.splitlines()) for line in answer_lines(result)[1:]))
        parts += ["## What to paste", "", *_code("python", *script_lines(".", result))]
        parts += _code("json", json.dumps(dict(setup.training_arguments), indent=1))
        parts += ["Model: `from_pretrained(name, **arguments)` with", ""]
        parts += _code("json", json.dumps(dict(setup.model_arguments)))
    if (answer := answer_of(result)) is not None:
        files = ", ".join(f"[{name}]({name})" for name in exports(answer) if name != YAML_FILE)
        parts += [f"For other tools: {files}.", ""]
    if best is not None:
        parts += ["## How it was measured", "", *markdown_list(evidence_lines(result, best)), ""]
        if result.numerics and result.numerics.has_losses:
            parts += ["![Losses of the finalists and of fp32](loss_curves.svg)", ""]
    ended = f"Why it ended: {result.stop_reason}. Proposals answered by earlier trials: {result.duplicate_proposals}."
    parts += ["## Trials", "", *_trials_table(result), "", markdown_text(ended), ""]
    if result.ruled_out:
        parts += ["## Ruled out before the search", "", *markdown_list(map(str, result.ruled_out)), ""]
    if result.all_notes:
        parts += ["## Notes", "", *markdown_list(result.all_notes), ""]
    where = [f"{label}: {text}" for label, text in study_parts(result)]
    return "\n".join([*parts, "## Where and what", "", *markdown_list(where)]) + "\n"


def _code(language: str, *lines: str) -> list[str]:
    return [f"```{language}", *lines, "```", ""]


def _trials_table(result: SearchResult) -> list[str]:
    shares = {number: use.mfu for number, use in result.utilizations.items() if use.mfu is not None}
    head = ["trial", "configuration", "outcome", "samples/s", *(["MFU"] if shares else [])]
    rows = []
    for trial in result.trials:
        final, mfu = trial.final, shares.get(trial.number)
        wait = "-" if final.data_wait_share is None else f"{final.data_wait_share:.0%}"
        rows.append(
            [
                f"{trial.number}{role_text(trial, result)}",
                one_line(difference(trial, result))[:LONGEST_CELL],
                one_line(outcome_text(trial))[:LONGEST_CELL],
                speed_text(trial),
                *([("-" if mfu is None else f"{mfu:.1%}")] if shares else []),
                f"{wait}{' (input-bound)' if final.input_bound else ''}",
                format_bytes(trial.peak_bytes),
                format_seconds(trial.probe_seconds),
                one_line(warnings_text(trial))[:LONGEST_CELL],
            ]
        )
    return markdown_table([[*head, "data wait", "peak", "probe", "warnings"], *rows], numeric=False)
