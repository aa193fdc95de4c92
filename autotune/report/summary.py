"""The answer in words: a few lines for the terminal, a page for summary.md."""

import json
from collections.abc import Iterable, Sequence

from autotune.core.errors import NothingFits
from autotune.core.interval import Interval
from autotune.core.measurement import Outcome
from autotune.core.no_answer import why_no_answer
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_interval, format_seconds, in_ranges, without_numbers
from autotune.report.evidence import (
    input_bound_text,
    measurement_lines,
    numerics_lines,
    rehearsal_lines,
    utilization_lines,
    verification_lines,
)
from autotune.report.exports import YAML_FILE, exports, switch_lines
from autotune.report.facts import Facts
from autotune.report.markdown import markdown_text, one_line
from autotune.report.script_lines import WITHOUT_MASK, adapter_text, collator_text, mask_lines, paste_lines
from autotune.space.launch import accelerate_line, launch_line
from autotune.space.settings import SETTINGS, learning_differences
from autotune.study.objective import is_open, pays_from, speed_up

SHORT = 8
"""Settings that one line can tell."""


def headline(facts: Facts) -> str:
    """One sentence: the answer against the baseline."""
    if facts.best is None:
        error = why_no_answer(facts.trials, facts.allowed_bytes)
        if not isinstance(error, NothingFits):
            return error.message
        return f"Nothing fits: none of {len(facts.trials)} trial(s) stayed within {format_bytes(facts.allowed_bytes)}."
    if facts.speedup is None:
        return f"Your own settings cannot be compared: {facts.speedup_reason}."
    if facts.baseline is not None and facts.best.number == facts.baseline.number:
        if not facts.disqualified:
            return "Your own settings are the best that was found."
        if any(trial.disqualified_reason for trial, _ in facts.disqualified):
            return "Your own settings are kept: what beats them does not learn as fp32 does."
        return "Your own settings are kept: cannot tell whether another configuration is faster."
    if facts.objective == "memory":
        before = format_bytes(facts.baseline.peak_bytes if facts.baseline else None)
        now = format_bytes(facts.best.peak_bytes)
        return f"{now} instead of {before}, {facts.speedup:.2f}x the speed of your settings."
    if is_open(facts.speedup):
        return f"Cannot tell whether this is faster than your settings ({gain_range(facts.speedup)})."
    if facts.speedup.low <= 1:
        return f"As fast as your settings ({gain_range(facts.speedup)})."
    digits = 1 if facts.speedup >= 1.1 else 2
    return f"{facts.speedup:.{digits}f}x faster than your settings (95 % interval {_range(facts.speedup)})."


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


def answer_lines(facts: Facts) -> list[str]:
    """The end of a search for a terminal: headline, both configurations, warnings."""
    told = [f"  {label:<10}{text}" for label, text in answer_parts(facts)]
    return [headline(facts), *told, f"Why it ended: {facts.stop_reason}."]


def answer_parts(facts: Facts) -> list[tuple[str, str]]:
    """What is said under the headline, as (label, text); without a label it goes on from the one before."""
    parts: list[tuple[str, str]] = []
    if facts.best is not None:
        parts += [
            ("best", _best_text(facts.best, facts.baseline)),
            (
                "",
                f"{speed_text(facts.best)} samples/s, peak {format_bytes(facts.best.peak_bytes)} "
                f"of {format_bytes(facts.allowed_bytes)} allowed{'' if facts.best.confirmed else '; not confirmed'}",
            ),
        ]
    if facts.best is not None and (use := facts.utilization.get(facts.best.number)) and use.mfu is not None:
        parts.append(("uses", use.text))
    if facts.baseline is not None:
        how = f"{speed_text(facts.baseline)} samples/s, peak {format_bytes(facts.baseline.peak_bytes)}"
        if not facts.baseline.feasible:
            how = f"{facts.baseline.final.outcome}: {facts.baseline.final.reason}"
        parts += [("baseline", _baseline_text(facts.best, facts.baseline)), ("", how)]
    parts += [("not used", line) for line in disqualified_lines(facts)]
    if facts.speedup is not None and facts.speedup_reason:
        parts.append(("speed-up", facts.speedup_reason))
    if facts.variables or facts.processes > 1:
        parts.append(("with", launch_line(facts.processes, facts.variables)))
    if facts.processes > 1:
        parts.append(("or with", accelerate_line(facts.processes, facts.variables)))
    if facts.best is not None and facts.best.measurement.compile_s:
        parts.append(("compiling", compiling_text(facts.best, facts.trials)))
    if collator := collator_text(facts.task, facts.data_answer):
        parts.append(("batches", f"data_collator={collator}"))
    if mask_lines(facts.data_answer):
        parts.append(("batches", WITHOUT_MASK))
    if facts.switches:
        parts.append(("switches", ", ".join(switch_lines(facts.switches))))
    if facts.adapter:
        parts.append(("adapter", adapter_text(facts.adapter)))
    if facts.best is not None and facts.best.final.input_bound:
        parts.append(("data", input_bound_text(facts.best.final)))
    losses = numerics_lines(facts.numerics, facts.best)
    parts += [("losses", line) for line in losses if f"losses {line}" not in facts.warnings]
    parts += [("also", line) for line in rehearsal_lines(facts.rehearsal)]
    parts += [("warning", warning) for warning in warnings(facts)]
    if facts.left_out:
        parts.append(("left out", f"{', '.join(facts.left_out)}: no time left; the same command goes on with it"))
    if learned := changed_learning(facts):
        parts.append(("note", f"learns differently from your settings: {learned}"))
    if facts.device_note:
        parts.append(("note", facts.device_note))
    return parts


def disqualified_lines(facts: Facts) -> list[str]:
    """The fastest trial that could not win although it was faster than the answer, why, and how many more there are."""
    if not facts.disqualified:
        return []
    (trial, reason), more = facts.disqualified[0], len(facts.disqualified) - 1
    base = facts.baseline
    gain = speed_up(trial, base, facts.objective)[0] if base is not None else None
    how_fast = f", {gain_range(gain)}" if gain is not None else ""
    told = f"trial {trial.number} ({_told(trial, facts)}){how_fast}: {reason}"
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


def warnings(facts: Facts) -> list[str]:
    """What speaks against trusting the result: the study's warnings, the best trial's, then the baseline's, each once.

    What is said of both is said once, with the range of its numbers."""
    told = [*facts.warnings, *(facts.best.final.warnings if facts.best else ())]
    if facts.baseline and facts.best and facts.baseline.number != facts.best.number:
        known = set(map(without_numbers, told))
        told += [
            warning if without_numbers(warning) in known else f"baseline: {warning}"
            for warning in facts.baseline.final.warnings
        ]
    return list(in_ranges(told))


def changed_learning(facts: Facts) -> str:
    """The settings that change numerics and differ between the answer and the baseline, and in what they learn differently."""
    if facts.best is None or facts.baseline is None:
        return ""
    best, base = facts.best.configuration.values, facts.baseline.configuration.values
    return ", ".join(
        f"{name} {best[name]} instead of {base[name]}"
        + (f" ({how})" if (how := SETTINGS[name].differs(best[name])) else "")
        for name in learning_differences(facts.best.configuration, facts.baseline.configuration)
    )


def summary(facts: Facts) -> str:
    """summary.md: the answer, what to paste, every trial, what was ruled out, where it was measured."""
    parts = [
        f"# {markdown_text(facts.name)}",
        "",
        markdown_text(headline(facts)),
        "",
        "With pictures, for a browser: [report.html](report.html).",
        "",
    ]
    if facts.best is not None:
        told = [" ".join(line.splitlines()) for line in answer_lines(facts)[1:]]
        parts += ["```", *told, "```", "", "## What to paste", "", "```python"]
        parts += [*paste_lines(".", facts), "```", "", "```json", json.dumps(dict(facts.answer), indent=1), "```", ""]
        parts += [
            "Model: `from_pretrained(name, **arguments)` with",
            "",
            "```json",
            json.dumps(dict(facts.model_answer)),
            "```",
            "",
        ]
    if facts.elsewhere is not None:
        files = ", ".join(f"[{name}]({name})" for name in exports(facts.elsewhere) if name != YAML_FILE)
        parts += [f"For other tools: {files}.", ""]
    if facts.best is not None:
        parts += ["## How it was measured", "", *_list(evidence_lines(facts, facts.best)), ""]
        if facts.numerics and facts.numerics.has_losses:
            parts += ["![Losses of the finalists and of fp32](loss_curves.svg)", ""]
    parts += ["## Trials", "", *_trials_table(facts), ""]
    ended = f"Why it ended: {facts.stop_reason}. Proposals answered by earlier trials: {facts.duplicate_proposals}."
    parts += [markdown_text(ended), ""]
    if facts.ruled_out:
        parts += ["## Ruled out before the search", "", *_list(facts.ruled_out), ""]
    if facts.notes:
        parts += ["## Notes", "", *_list(facts.notes), ""]
    where = [
        f"model: {facts.model}, task {facts.task}",
        f"data: {facts.data}",
        f"device: {facts.device}",
        f"limit: {format_bytes(facts.limit_bytes)} of memory, {format_bytes(facts.allowed_bytes)} allowed",
        *(f"{label}: {text}" for label, text in facts.surroundings),
        f"versions: {', '.join(f'{name} {version}' for name, version in facts.versions.items())}",
    ]
    return "\n".join([*parts, "## Where and what", "", *_list(where)]) + "\n"


def _list(texts: Iterable[str]) -> list[str]:
    return [f"- {markdown_text(text)}" for text in texts]


def evidence_lines(facts: Facts, best: Trial) -> list[str]:
    """What the best trial's numbers stand on: steps, memory, losses, evaluation, a verification."""
    return [
        *measurement_lines(best),
        *utilization_lines(facts.utilization.get(best.number)),
        *(f"losses: {line}" for line in numerics_lines(facts.numerics, best)),
        *rehearsal_lines(facts.rehearsal),
        *verification_lines(facts.verification),
    ]


def _trials_table(facts: Facts) -> list[str]:
    known = any(use.mfu is not None for use in facts.utilization.values())
    header = f"| trial | configuration | outcome | samples/s |{' MFU |' if known else ''} data wait | peak | probe | warnings |"
    rows = [
        f"| {trial.number}{' (best)' if facts.best and trial.number == facts.best.number else ''} "
        f"| {_cell(_told(trial, facts))} | {_cell(outcome_text(trial))} | {speed_text(trial)} "
        f"{f'| {mfu_text(trial, facts)} ' if known else ''}| {wait_text(trial)} | {format_bytes(trial.peak_bytes)} "
        f"| {format_seconds(trial.probe_seconds)} | {_cell(warnings_text(trial))} |"
        for trial in facts.trials
    ]
    return [header, "|---" * (header.count("|") - 1) + "|", *rows]


def mfu_text(trial: Trial, facts: Facts) -> str:
    """`45.2%`, or a dash."""
    use = facts.utilization.get(trial.number)
    return "-" if use is None or use.mfu is None else f"{use.mfu:.1%}"


def _told(trial: Trial, facts: Facts) -> str:
    """The configuration: the baseline's whole, of the others what differs from it."""
    base = facts.baseline
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
