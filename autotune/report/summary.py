"""The answer in words: a few lines for the terminal, a page for summary.md."""

import json
from collections.abc import Iterable, Sequence

from autotune.core.errors import NothingFits
from autotune.core.interval import Interval
from autotune.core.measurement import Outcome
from autotune.core.no_answer import why_no_answer
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_interval, format_seconds, in_ranges, without_numbers
from autotune.report.device import device_parts
from autotune.report.evidence import (
    input_bound_text,
    measurement_lines,
    numerics_lines,
    rehearsal_lines,
    utilization_lines,
    verification_lines,
)
from autotune.report.exports import YAML_FILE, answer_of, exports, switch_lines
from autotune.report.markdown import markdown_text, one_line
from autotune.report.script_lines import WITHOUT_MASK, adapter_text, collator_text, mask_lines, paste_lines
from autotune.space.launch import accelerate_line, launch_line
from autotune.space.settings import SETTINGS, learning_differences
from autotune.study.objective import is_open, pays_from, speed_up
from autotune.study.result import SearchResult

SHORT = 8
"""Settings that one line can tell."""


def headline(result: SearchResult) -> str:
    """One sentence: the answer against the baseline."""
    if result.best_trial is None:
        error = why_no_answer(result.trials, result.allowed_bytes)
        if not isinstance(error, NothingFits):
            return error.message
        return (
            f"Nothing fits: none of {len(result.trials)} trial(s) stayed within {format_bytes(result.allowed_bytes)}."
        )
    if result.measured_speedup is None:
        return f"Your own settings cannot be compared: {result.speedup_reason}."
    if result.baseline_trial is not None and result.best_trial.number == result.baseline_trial.number:
        if not result.disqualified:
            return "Your own settings are the best that was found."
        if any(trial.disqualified_reason for trial, _ in result.disqualified):
            return "Your own settings are kept: what beats them does not learn as fp32 does."
        return "Your own settings are kept: cannot tell whether another configuration is faster."
    if result.request.objective == "memory":
        before = format_bytes(result.baseline_trial.peak_bytes if result.baseline_trial else None)
        now = format_bytes(result.best_trial.peak_bytes)
        return f"{now} instead of {before}, {result.measured_speedup:.2f}x the speed of your settings."
    if is_open(result.measured_speedup):
        return f"Cannot tell whether this is faster than your settings ({gain_range(result.measured_speedup)})."
    if result.measured_speedup.low <= 1:
        return f"As fast as your settings ({gain_range(result.measured_speedup)})."
    digits = 1 if result.measured_speedup >= 1.1 else 2
    return f"{result.measured_speedup:.{digits}f}x faster than your settings (95 % interval {_range(result.measured_speedup)})."


def _best_text(best: Trial, baseline: Trial | None) -> str:
    """The answer by what differs from the baseline."""
    if baseline is None or best.number == baseline.number:
        return str(best.configuration)
    return f"{best.configuration.unlike(baseline.configuration)}; else as the baseline"


def _baseline_text(best: Trial | None, baseline: Trial) -> str:
    """The baseline, whole as far as that is a line to read; of more settings those that the answer has otherwise."""
    if best is None or len(baseline.configuration.settings) <= SHORT or best.number == baseline.number:
        return str(baseline.configuration)
    return f"{baseline.configuration.unlike(best.configuration)}; its other settings: see the report"


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def gain_range(gain: Interval) -> str:
    """`1.23x, 95 % interval 0.44 to 3.41`."""
    return f"{gain:.2f}x, 95 % interval {_range(gain)}"


def speed_line(best: Trial, baseline: Trial | None, objective: str) -> str:
    """`41.2 ± 0.3 samples/s, 2.41x the baseline (95 % interval 2.30 to 2.52)`; the peak too where memory is the objective."""
    told = f"{speed_text(best)} samples/s"
    if objective == "memory":
        told = f"{format_bytes(best.peak_bytes)}, {told}"
    if baseline is None or baseline.number == best.number:
        return f"{told}, the baseline itself" if baseline else told
    speedup, reason = speed_up(best, baseline, objective)
    if speedup is None:
        return f"{told}, no speed-up: {reason}"
    return f"{told}, {speedup:.2f}x the baseline (95 % interval {_range(speedup)})"


def speed_text(trial: Trial) -> str:
    """`41.2 ± 0.3`, or a dash."""
    speed = trial.samples_per_second
    return format_interval(speed, speed.low, speed.high) if speed is not None else "-"


def answer_lines(result: SearchResult) -> list[str]:
    """The end of a search for a terminal: headline, both configurations, warnings."""
    told = [f"  {label:<10}{text}" for label, text in answer_parts(result)]
    return [headline(result), *told, f"Why it ended: {result.stop_reason}."]


def answer_parts(result: SearchResult) -> list[tuple[str, str]]:
    """What is said under the headline, as (label, text); without a label it goes on from the one before."""
    parts: list[tuple[str, str]] = []
    if result.best_trial is not None:
        parts += [
            ("best", _best_text(result.best_trial, result.baseline_trial)),
            (
                "",
                f"{speed_text(result.best_trial)} samples/s, peak {format_bytes(result.best_trial.peak_bytes)} "
                f"of {format_bytes(result.allowed_bytes)} allowed{'' if result.best_trial.confirmed else '; not confirmed'}",
            ),
        ]
    if (
        result.best_trial is not None
        and (use := result.utilizations.get(result.best_trial.number))
        and use.mfu is not None
    ):
        parts.append(("uses", use.text))
    if result.baseline_trial is not None:
        how = f"{speed_text(result.baseline_trial)} samples/s, peak {format_bytes(result.baseline_trial.peak_bytes)}"
        if not result.baseline_trial.feasible:
            how = f"{result.baseline_trial.final.outcome}: {result.baseline_trial.final.reason}"
        parts += [("baseline", _baseline_text(result.best_trial, result.baseline_trial)), ("", how)]
    parts += [("not used", line) for line in disqualified_lines(result)]
    if result.measured_speedup is not None and result.speedup_reason:
        parts.append(("speed-up", result.speedup_reason))
    if result.best_setup.variables or result.best_setup.processes > 1:
        parts.append(("with", launch_line(result.best_setup.processes, result.best_setup.variables)))
    if result.best_setup.processes > 1:
        parts.append(("or with", accelerate_line(result.best_setup.processes, result.best_setup.variables)))
    if result.best_trial is not None and result.best_trial.measurement.compile_s:
        parts.append(("compiling", compiling_text(result.best_trial, result.trials)))
    if collator := collator_text(result.workload.task, result.best_setup.data_arguments):
        parts.append(("batches", f"data_collator={collator}"))
    if mask_lines(result.best_setup.data_arguments):
        parts.append(("batches", WITHOUT_MASK))
    if result.best_setup.switches:
        parts.append(("switches", ", ".join(switch_lines(result.best_setup.switches))))
    if result.best_setup.adapter:
        parts.append(("adapter", adapter_text(result.best_setup.adapter)))
    if result.best_trial is not None and result.best_trial.final.input_bound:
        parts.append(("data", input_bound_text(result.best_trial.final)))
    losses = numerics_lines(result.numerics, result.best_trial)
    parts += [("losses", line) for line in losses if f"losses {line}" not in result.study_warnings]
    parts += [("also", line) for line in rehearsal_lines(result.rehearsal)]
    parts += [("warning", warning) for warning in warnings(result)]
    if result.left_out:
        parts.append(("left out", f"{', '.join(result.left_out)}: no time left; the same command goes on with it"))
    if learned := changed_learning(result):
        parts.append(("note", f"learns differently from your settings: {learned}"))
    if result.device_note:
        parts.append(("note", result.device_note))
    return parts


def disqualified_lines(result: SearchResult) -> list[str]:
    """The fastest trial that could not win although it was faster than the answer, why, and how many more there are."""
    if not result.disqualified:
        return []
    (trial, reason), more = result.disqualified[0], len(result.disqualified) - 1
    base = result.baseline_trial
    gain = speed_up(trial, base, result.request.objective)[0] if base is not None else None
    how_fast = f", {gain_range(gain)}" if gain is not None else ""
    told = f"trial {trial.number} ({_told(trial, result)}){how_fast}: {reason}"
    others = [f"{more} more that {'was' if more == 1 else 'were'} faster: see the trials"] if more else []
    accept = ["--allow-loss-difference lets it win"] if trial.disqualified_reason else []
    return [told, *accept, *others]


def compiling_text(best: Trial, trials: Sequence[Trial]) -> str:
    """What compiling costs at a run's start, and from how many steps on it pays."""
    said = f"takes {format_seconds(best.measurement.compile_s)} at the start"
    if best.final.training_steps:
        share = best.final.after_compiling
        said += f", {1 - share:.1%} of the time of your {best.final.training_steps} steps"
    steps = pays_from(best, trials)
    return f"{said}; it pays from {steps} steps on" if steps else said


def warnings(result: SearchResult) -> list[str]:
    """What speaks against trusting the result: the study's warnings, the best trial's, then the baseline's, each once.

    What is said of both is said once, with the range of its numbers."""
    told = [*result.study_warnings, *(result.best_trial.final.warnings if result.best_trial else ())]
    if result.baseline_trial and result.best_trial and result.baseline_trial.number != result.best_trial.number:
        known = set(map(without_numbers, told))
        told += [
            warning if without_numbers(warning) in known else f"baseline: {warning}"
            for warning in result.baseline_trial.final.warnings
        ]
    return list(in_ranges(told))


def changed_learning(result: SearchResult) -> str:
    """The settings that change numerics and differ between the answer and the baseline, and in what they learn differently."""
    if result.best_trial is None or result.baseline_trial is None:
        return ""
    best, base = result.best_trial.configuration.values, result.baseline_trial.configuration.values
    return ", ".join(
        f"{name} {best[name]} instead of {base[name]}"
        + (f" ({how})" if (how := SETTINGS[name].differs(best[name])) else "")
        for name in learning_differences(result.best_trial.configuration, result.baseline_trial.configuration)
    )


def summary(result: SearchResult) -> str:
    """summary.md: the answer, what to paste, every trial, what was ruled out, where it was measured."""
    parts = [
        f"# {markdown_text(result.name)}",
        "",
        markdown_text(headline(result)),
        "",
        "With pictures, for a browser: [report.html](report.html).",
        "",
    ]
    if result.best_trial is not None:
        told = [" ".join(line.splitlines()) for line in answer_lines(result)[1:]]
        parts += ["```", *told, "```", "", "## What to paste", "", "```python"]
        parts += [
            *paste_lines(".", result),
            "```",
            "",
            "```json",
            json.dumps(dict(result.best_setup.training_arguments), indent=1),
            "```",
            "",
        ]
        parts += [
            "Model: `from_pretrained(name, **arguments)` with",
            "",
            "```json",
            json.dumps(dict(result.best_setup.model_arguments)),
            "```",
            "",
        ]
    if (answer := answer_of(result)) is not None:
        files = ", ".join(f"[{name}]({name})" for name in exports(answer) if name != YAML_FILE)
        parts += [f"For other tools: {files}.", ""]
    if result.best_trial is not None:
        parts += ["## How it was measured", "", *_list(evidence_lines(result, result.best_trial)), ""]
        if result.numerics and result.numerics.has_losses:
            parts += ["![Losses of the finalists and of fp32](loss_curves.svg)", ""]
    parts += ["## Trials", "", *_trials_table(result), ""]
    ended = f"Why it ended: {result.stop_reason}. Proposals answered by earlier trials: {result.duplicate_proposals}."
    parts += [markdown_text(ended), ""]
    if result.ruled_out:
        parts += ["## Ruled out before the search", "", *_list(map(str, result.ruled_out)), ""]
    if result.all_notes:
        parts += ["## Notes", "", *_list(result.all_notes), ""]
    where = [
        f"model: {result.model_text}, task {result.workload.task}",
        f"data: {result.data_text}",
        f"device: {result.device_text}",
        f"limit: {format_bytes(result.memory_limit_bytes)} of memory, {format_bytes(result.allowed_bytes)} allowed",
        *(f"{label}: {text}" for label, text in device_parts(result.environment)),
        f"versions: {', '.join(f'{name} {version}' for name, version in result.environment.versions.items())}",
    ]
    return "\n".join([*parts, "## Where and what", "", *_list(where)]) + "\n"


def _list(texts: Iterable[str]) -> list[str]:
    return [f"- {markdown_text(text)}" for text in texts]


def evidence_lines(result: SearchResult, best: Trial) -> list[str]:
    """What the best trial's numbers stand on: steps, memory, losses, evaluation, a verification."""
    return [
        *measurement_lines(best),
        *utilization_lines(result.utilizations.get(best.number)),
        *(f"losses: {line}" for line in numerics_lines(result.numerics, best)),
        *rehearsal_lines(result.rehearsal),
        *verification_lines(result.verification),
    ]


def _trials_table(result: SearchResult) -> list[str]:
    known = any(use.mfu is not None for use in result.utilizations.values())
    header = f"| trial | configuration | outcome | samples/s |{' MFU |' if known else ''} data wait | peak | probe | warnings |"
    rows = [
        f"| {trial.number}{' (best)' if result.best_trial and trial.number == result.best_trial.number else ''} "
        f"| {_cell(_told(trial, result))} | {_cell(outcome_text(trial))} | {speed_text(trial)} "
        f"{f'| {mfu_text(trial, result)} ' if known else ''}| {wait_text(trial)} | {format_bytes(trial.peak_bytes)} "
        f"| {format_seconds(trial.probe_seconds)} | {_cell(warnings_text(trial))} |"
        for trial in result.trials
    ]
    return [header, "|---" * (header.count("|") - 1) + "|", *rows]


def mfu_text(trial: Trial, result: SearchResult) -> str:
    """`45.2%`, or a dash."""
    use = result.utilizations.get(trial.number)
    return "-" if use is None or use.mfu is None else f"{use.mfu:.1%}"


def _told(trial: Trial, result: SearchResult) -> str:
    """The configuration: the baseline's whole, of the others what differs from it."""
    base = result.baseline_trial
    return trial.configuration.unlike(None if base is None or base.number == trial.number else base.configuration)


def wait_text(trial: Trial) -> str:
    """Share of a step spent waiting for data: `3 %`, `62 % (input-bound)`, or a dash."""
    share = trial.final.data_wait_share
    if share is None:
        return "-"
    return f"{share:.0%}{' (input-bound)' if trial.final.input_bound else ''}"


def warnings_text(trial: Trial) -> str:
    """The warnings about a trial's numbers, and those for which it was measured again."""
    again = [f"measured again because {warning}" for warning in trial.final.repeated_because]
    return "; ".join([*trial.final.warnings, *again])


def outcome_text(trial: Trial) -> str:
    """`completed`, `completed (confirmed)`, `out of memory in forward: 16 MiB more were refused`."""
    final = trial.final
    if final.outcome is Outcome.COMPLETED:
        if final.allocator_retries and not final.feasible:
            return f"completed, but the allocator was at its end {final.allocator_retries} time(s)"
        if not final.feasible:
            return f"completed, but {final.fits:.0%} above what is allowed"
        if trial.disqualified_reason:
            return f"completed (cannot win: {trial.disqualified_reason})"
        if trial.confirmed:
            return "completed (confirmed)"
        return "completed (ended early: cannot win)" if final.ended_early else "completed"
    where = f" in {final.where}" if final.where else ""
    if final.outcome is Outcome.OUT_OF_MEMORY and final.refused_bytes is not None:
        return f"out of memory{where}: {format_bytes(final.refused_bytes)} more were refused"
    return f"{final.outcome}{where}: {final.reason}"


def _cell(text: str) -> str:
    return markdown_text(one_line(text)[:200])
