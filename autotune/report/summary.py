"""The answer in words: the end of a search on a terminal, summary.md, and three lines to share."""

import json
import re
from collections.abc import Sequence

from autotune.core.device import Device
from autotune.core.paths import named, shown, study_word
from autotune.core.units import NO_BREAK, broken, counted, format_bytes, format_seconds
from autotune.report.checks import Check, Level, checks, loss_values
from autotune.report.claim import claim_of, headline, time_texts
from autotune.report.device import study_parts
from autotune.report.evidence import evidence_lines
from autotune.report.exports import YAML_FILE, answer_of, exports
from autotune.report.markdown import WIDTH, markdown_list, markdown_table, markdown_text, one_line, wrapped
from autotune.report.snippets import launch_lines, script_lines, search_command, setup_changes
from autotune.report.trial_text import (
    difference,
    outcome_text,
    range_text,
    role_text,
    speed_text,
    warnings_text,
)
from autotune.study.result import SearchResult

ANSWER, BASIC_LINES = "best_training_arguments.json", 4
"""The file with the answer, and how many lines of a script read it."""

SHORT_S = 10.0
"""Seconds up to which nobody asks how long a search took."""

LONGEST_CELL = 200
"""Characters of a cell in summary.md."""

LABEL, CELL, LONGEST_VALUE = 32, 20, 18
"""Columns of a terminal for a row's label and for each of its values, and characters of a value."""


# The answer -----------------------------------------------------------------------------------------------------------


def answer_lines(result: SearchResult) -> list[str]:
    """The end of a search for a terminal of 80 columns: headline, yours against tuned, what to know, what to do next."""
    claim = claim_of(result)
    interval = f"(95% {range_text(claim.gain)})" if claim.gain is not None else ""
    room = WIDTH - len(claim.headline)
    lines = [claim.headline + interval.rjust(room)] if interval and len(interval) + 2 <= room else []
    lines = lines or [*wrapped(claim.headline), *([f"  {interval}"] if interval else [])]
    rows = _rows(result)
    if not rows or claim.gain is None:
        lines += [part for text in claim.details for part in wrapped(text, "  ")]
    lines += ["", *rows] if rows else []
    if known := checks(result):
        fine = " ".join(check.title for check in known if check.level is Level.OK)
        lines += ["", *(wrapped(fine, "  ok    ", " " * 8) if fine else [])]
        lines += [part for check in known if check.level is not Level.OK for part in _check_lines(check)]
    if len(starts := launch_lines(result)) > 1 or result.best_setup.variables:
        lines += ["", *(line for start in starts for line in _command_lines(start, "  start "))]
    if claim.advice and (claim.command or not known):
        lines += ["", *wrapped(claim.advice, "  ")]
        lines += _command_lines(claim.command, "    ")
    return [*lines, "", *wrapped(f"Why it ended: {result.stop.short}.")]


def use_lines(result: SearchResult, seconds: float) -> list[str]:
    """Instructions to use and check the answer, if it is not the user's settings; then the path of its report.

    seconds: that the search took; named if they are many.
    """
    lines, folder = [], shown(result.folder)
    if result.changes_settings:
        lines = ['Use it    TrainingArguments("output", **json.load(open(FILE)))', f"    FILE  {folder}/{ANSWER}"]
        more = script_lines(folder, result)[BASIC_LINES:]
        lines += ["     and", *(f"    {line}" for line in more)] if more else []
        if result.folder is not None and result.is_verifiable:
            lines.append(f"Check it  autotune verify {study_word(result.folder)}")
    took = f"   (took {format_seconds(seconds)})" if seconds > SHORT_S else ""
    return [*lines, f"Report    {folder}/report.html{took}"]


def python_lines(result: SearchResult) -> list[str]:
    """Instructions to use the answer in Python, if it is not the user's settings; then the path of its report."""
    way = "build(result.arguments(args))" if result.workload.built else "result.training_arguments(output_dir=...)"
    lines = [f"Use it    {way}"] if result.changes_settings else []
    return [*lines, f"Report    {shown(result.folder)}/report.html"]


def _check_lines(check: Check) -> list[str]:
    text = one_line(" ".join(filter(None, (check.title, check.text, check.action))))
    text = re.sub("`([^`]*)`", lambda code: code[1].replace(" ", NO_BREAK), text)
    return broken(text, WIDTH, f"  {check.level:<6}", " " * 8)


def _command_lines(command: str, first: str) -> list[str]:
    """A command in lines that a shell takes together."""
    *lines, last = broken(command, WIDTH - 2, first, " " * 8, r"(?:--[\w-]+ )?'[^']*'|--[\w-]+ [^-\s]\S*") or [""]
    return [*(f"{line} \\" for line in lines), *filter(None, [last])]


def _rows(result: SearchResult) -> list[str]:
    """Speed, time, memory and every changed setting of the user's configuration and of the answer; empty if it is theirs."""
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or baseline is None or not result.changes_settings:
        return []
    sides = [(baseline if baseline.feasible else None), best]
    uses = [result.utilizations.get(trial.number) if trial else None for trial in sides]
    times = time_texts(*(trial.final.step_time_s or 0.0 for trial in sides if trial))
    rows = {
        "": [result.baseline_word, "tuned"],
        "samples/s": [speed_text(trial) if trial else "-" for trial in sides],
        "time per step": times if len(times) > 1 else ["-", *times],
        f"peak memory, of {format_bytes(result.allowed_bytes)}": [
            format_bytes(trial.peak_bytes) if trial else "-" for trial in sides
        ],
    }
    if any(use and use.mfu for use in uses):
        rows["MFU"] = [f"{use.mfu:.1%}" if use and use.mfu else "-" for use in uses]
    lines = [_row(label, cells) for label, cells in rows.items()]
    changed = setup_changes(result)
    lines += ["", *(_row(name, [_value(value) for value in pair]) for name, pair in changed.items())]
    same = len(result.best_setup.training_arguments.keys() - changed.keys())
    return [*lines, f"  ({counted(same, 'more argument')} {'stays' if same == 1 else 'stay'} as before)"]


def _row(label: str, cells: list[str]) -> str:
    return f"  {one_line(label)[:LABEL]:<{LABEL}}{''.join(f'{one_line(cell):>{CELL}}' for cell in cells)}"


def _value(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def share_lines(result: SearchResult) -> list[str]:
    """Three lines of Markdown for a pull request: the claim, what changed, and how it was found."""
    claim, name = claim_of(result), markdown_text(named(result.workload.name))
    interval = f" (95% interval {range_text(claim.gain)})" if claim.gain is not None else ""
    claimed = markdown_text(claim.headline)
    lines = [f"**{name}: {claimed}**{interval}, on {markdown_text(result.environment.device_name)}."]
    changed = setup_changes(result) if result.changes_settings else {}
    texts = [f"`{field}` {markdown_text(f'{was} → {now}')}" for field, (was, now) in changed.items()]
    losses = loss_values(result.numerics, result.best_trial) if result.numerics and result.best_trial else ""
    lines += [f"Change: {', '.join(texts)}.{f' Losses: {markdown_text(losses)}.' if losses else ''}"] if texts else []
    versions, command = ", ".join(result.environment.versions_text.split(", ")[:3]), search_command(result)
    return [*lines, f"{f'`{command}` · ' if command else ''}{markdown_text(versions)}"]


# summary.md -----------------------------------------------------------------------------------------------------------


def summary(result: SearchResult) -> str:
    """summary.md: the answer, what to paste, every trial, what was ruled out, where it was measured."""
    best, setup = result.best_trial, result.best_setup
    parts = [f"# {markdown_text(result.title)}", "", markdown_text(headline(result)), ""]
    parts += ["With pictures, for a browser: [report.html](report.html).", ""]
    parts += _code("", *("".join(line.splitlines()) for line in answer_lines(result)))
    if result.changes_settings:
        parts += ["## What to paste", "", *_code("python", *script_lines(".", result))]
        parts += _code("json", json.dumps(dict(setup.training_arguments), indent=1))
        parts += ["Model: `from_pretrained(name, **arguments)` with", ""]
        parts += _code("json", json.dumps(dict(setup.model_arguments)))
    if (answer := answer_of(result)) is not None:
        files = ", ".join(f"[{name}]({name})" for name in exports(answer) if name != YAML_FILE)
        parts += [f"For other tools: {files}.", ""]
    if best is not None:
        parts += ["## How it was measured", "", *markdown_list(evidence_lines(result, best)), ""]
    parts += ["## Trials", "", *_trials_table(result), "", markdown_text(f"Why it ended: {result.stop_reason}."), ""]
    if result.devices:
        parts += ["## Devices", "", *device_lines(result.devices), ""]
    if result.ruled_out:
        parts += ["## Left out on this device", "", *markdown_list(map(str, result.ruled_out)), ""]
    if result.all_notes:
        parts += ["## Notes", "", *markdown_list(map(str, result.all_notes)), ""]
    where = [f"{label}: {text}" for label, text in study_parts(result)]
    return "\n".join([*parts, "## Environment", "", *markdown_list(where)]) + "\n"


def device_lines(devices: Sequence[Device]) -> list[str]:
    """Markdown: how fast each of several devices is against all, with its 95 % interval, and what it ran."""
    rows = ["| device | speed / mean | 95% interval | trials | rounds | left out |", "|---|---|---|---|---|---|"]
    for device in devices:
        cells = [device.name, f"{device.factor:.3f}", f"{device.low:.3f} to {device.high:.3f}"]
        rows.append(
            "| " + " | ".join([*cells, str(device.trials), str(device.rounds), str(device.left_out or "")]) + " |"
        )
    return rows


def _code(language: str, *lines: str) -> list[str]:
    return [f"```{language}", *lines, "```", ""]


def _trials_table(result: SearchResult) -> list[str]:
    shares = {number: use.mfu for number, use in result.utilizations.items() if use.mfu is not None}
    head = ["trial", "configuration", "outcome", "samples/s", *(["MFU"] if shares else [])]
    head += ["data wait", "peak", "probe", "warnings"]
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
    return markdown_table([head, *rows], [False] * len(head))
