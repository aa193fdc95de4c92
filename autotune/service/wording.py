"""Words and numbers of the page: what it says of a search, its trials and its result."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from autotune.core.configuration import Configuration, word
from autotune.core.units import format_interval, three_digits
from autotune.report.snippets import option_words
from autotune.report.trial_text import NOT_PROVEN
from autotune.service.records import ENDED, QUEUED, RUNNING, Event

STATES = {state: state.replace("_", " ").capitalize() for state in (QUEUED, RUNNING, *ENDED)}
FIELDS = (
    *("model", "global_batch_size", "sequence_length", "dataset", "task"),
    *("name", "device", "memory_limit", "n_trials", "timeout", "keep_numerics"),
)
"""Options that have a field of their own; all others are written as YAML."""

WORK = ("model", "task", "global_batch_size", "sequence_length", "dataset", "dataset_split")
"""Options that must be equal for speeds of two searches to be compared."""

NOT_ARGUMENTS = ("model_arguments", "adapter", "data_arguments", "torch_switches", "environment_variables")
"""Parts of an answer that `TrainingArguments` does not hold."""

PLOT_WIDTH = 200.0

Record = Mapping[str, Any]
"""A search as `api.shown` has it, its result, a trial of that, or the body of an event."""

Bounds = Sequence[float | None]
"""A mean and the ends of its 95 % interval; an upper end of None has no bound."""


# Words and numbers ------------------------------------------------------------------------------------------------


def interval(record: Record, name: str = "samples_per_second") -> Bounds | None:
    """A number of a result with its interval; None if it is not known."""
    return [record[f"{name}{end}"] for end in ("", "_low", "_high")] if record and record[name] else None


def measured_speedup(result: Record) -> Bounds | None:
    """A result's speed-up with its interval; None if the user's settings are kept, which are not compared with themselves."""
    speedup = interval(result, "speedup")
    return speedup if speedup and speedup[1] is not None else None


def speed_text(speed: Bounds | None) -> str:
    """`41.2 ± 0.3`; `about 41` if the interval is wider than the value; or a dash."""
    mean, low, high = speed or (None, None, None)
    if mean is None:
        return "–"
    if low is None or high is None or high - low > mean:
        return f"about {three_digits(mean)}"
    return format_interval(mean, low, high)


def ago(moment: datetime) -> str:
    """`3 min ago`."""
    seconds = max(1.0, (datetime.now(UTC) - moment).total_seconds())
    size, unit = next(age for age in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= age[0])
    return f"{seconds // size:.0f} {unit} ago"


def outline(search: Record) -> str:
    """One line of a search: its position in the queue, what it does and has reached, or how it ended."""
    if search["state"] == QUEUED:
        return f"Number {search['position']} in the queue"
    if search["state"] != RUNNING:
        return search["headline"] or search["statement"] or "No result"
    progress = search["progress"] or {}
    reached = f"{progress['speedup']:.2f}× {_so_far(progress)}; " if progress.get("speedup") else ""
    return f"{reached}{progress.get('doing') or 'choosing what to try'}"


def _so_far(progress: Record) -> str:
    return "so far" if progress["is_proven"] else f"so far{NOT_PROVEN}"


def headline(search: Record, is_measured: bool) -> Sequence[str]:
    """The outline of a search in three parts: how many times as fast, the sentence, and what is beside it."""
    if search["state"] != RUNNING:
        parts: Sequence[str] = (search["result"] or {}).get("headline_parts") or ("", outline(search).rstrip("."), "")
        return parts
    progress = search["progress"] or {}
    if progress.get("best") and (progress["speedup"] or 0) > 1:
        return f"{progress['speedup']:.2f}×", f" as fast as the baseline {_so_far(progress)}", progress["doing"]
    reached = "Nothing is proven faster than the baseline yet" if is_measured else "The baseline is measured first"
    return "", reached, progress.get("doing", "")


def plotted(values: Bounds | None, high: float) -> list[float]:
    """A mean and the ends of its interval as positions from 0 to `high` on PLOT_WIDTH; empty if there is none."""
    positions = [PLOT_WIDTH * (high if value is None else value) / high for value in values or ()]
    return [round(min(PLOT_WIDTH - 4, max(4.0, position)), 1) for position in positions]


def top_of(intervals: Iterable[Bounds | None]) -> float:
    """End of an axis on which all of these means are, and their intervals if those are not very wide."""
    return 1.05 * max([min(each[2] or 2 * each[0], 2 * each[0]) for each in intervals if each and each[0]], default=1.0)


def trial_rows(events: Sequence[Event], best: int | None) -> list[dict[str, Any]]:
    """The latest numbers of each trial, the fastest first, what does not fit last."""
    latest = {event.body["number"]: event for event in events if event.kind in ("trial", "confirmed")}
    roles = ({} if best is None else {best: "answer"}) | {0: "yours"}
    rows = [
        event.body | {"is_measured_again": event.kind == "confirmed", "role": roles.get(number, "")}
        for number, event in latest.items()
    ]
    top = top_of(row["samples_per_second"] for row in rows)
    rows.sort(key=lambda row: (bool(row["reason"]), -(row["samples_per_second"] or [0])[0]))
    return [row | {"plot": plotted(row["samples_per_second"], top)} for row in rows]


def timeline(events: Sequence[Event]) -> list[tuple[datetime, str, str]]:
    """States, why a search was queued again, preparations, and each new best: time, text, state."""
    lines: list[tuple[datetime, str, str]] = []
    best = None
    for event in events:
        body, text, state = event.body, "", event.body.get("state", "")
        if state:
            again = f", attempt {body['attempt']}" if state == RUNNING and body["attempt"] > 1 else ""
            text = f"{STATES[state]}{again}{f': {why}' if (why := body.get('reason')) and state == QUEUED else ''}"
        elif event.kind == "preparing":
            text = body["message"]
        elif body["best"] not in (None, best):
            best = body["best"]
            which = f"{'Best' if body['is_proven'] else 'Fastest'} {_so_far(body)}: trial {best}"
            text = f"{which if best else 'The baseline'}, {speed_text(body['best_samples_per_second'])} samples/s"
        if text and (not lines or lines[-1][1] != text):
            lines.append((event.at, text, state))
    return lines


def values_of(trial: Record | None) -> dict[str, Any]:
    """Sizes and settings of a trial of a result, by name."""
    return Configuration.from_dict(trial).sizes_and_settings if trial else {}


def changes(after: Record, before: Record) -> list[tuple[str, str, str]]:
    """Values that differ, as name, before and after."""
    pairs = {name: (before.get(name, "–"), value) for name, value in after.items()}
    return [(name.replace("_", " "), word(old), word(new)) for name, (old, new) in pairs.items() if old != new]


def python(result: Record) -> str:
    """The answer as it is pasted; what no training argument holds as comments."""
    fields = [f"    {name}={value!r}," for name, value in result["training_arguments"].items()]
    others = [f"# {name.replace('_', ' ')}: {json.dumps(result[name])}" for name in NOT_ARGUMENTS if result.get(name)]
    begin = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    return "\n".join([*begin, '    output_dir="output",', *fields, ")", *others])


def command_line(wanted: Record, server: str) -> str:
    """The same search as `autotune search`; what is a file there follows as a comment."""
    parts, files = [], []
    for name, value in wanted.items():
        given = [{key: item} for key, item in value.items()] if isinstance(value, Mapping) else value
        if name == "args" or (name == "space" and re.search(r"[\n:]", value)):
            files.append(f"# {name}.yaml: {json.dumps(value)}")
            given = f"{name}.yaml"
        if name not in ("model", "name", "priority", "card"):
            parts += [shlex.join(option_words(name, each)) for each in (given if isinstance(given, list) else [given])]
    command = [f"autotune search {shlex.quote(wanted['model'])}", *parts, f"--server {server}"]
    return "\n".join([" \\\n    ".join(command), *files])
