"""What a search shows while it runs: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.configuration import RANKS, Configuration, word
from autotune.plan import Progress
from autotune.report.summary import outcome_text, speed_text
from autotune.trial import Trial
from autotune.units import format_bytes, format_seconds

ROWS = 12
"""Latest trials that the live table shows; all are in the report."""


def watcher(console: Console, quiet: bool) -> "LiveTable | PlainLines | Silent":
    """Something to give to `search(watch=...)` and to use as a context."""
    if quiet:
        return Silent()
    return LiveTable(console) if console.is_terminal else PlainLines(console)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Callable[[Progress], None]:
        return lambda progress: None

    def __exit__(self, *_: object) -> None:
        return None


class PlainLines:
    """One line for everything that happened, for logs and CI."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Callable[[Progress], None]:
        return self._say

    def __exit__(self, *_: object) -> None:
        return None

    def _say(self, progress: Progress) -> None:
        if progress.kind in ("trial", "confirmed") and progress.trial:
            trial = progress.trial
            what = f"round {len(trial.confirmations)}, trial" if progress.kind == "confirmed" else "trial"
            speed = f"{speed_text(trial)} samples/s, peak {format_bytes(trial.peak_bytes)}"
            done = speed if trial.feasible else outcome_text(trial)
            doubts = f"; doubt: {'; '.join(trial.final.doubts)}" if trial.final.doubts else ""
            left = f"; {_left(progress)}" if progress.kind == "trial" else ""
            told = trial.configuration.unlike(_baseline(progress, trial))
            self._line(f"{what} {trial.number}: {told}: {done}{doubts}{_best_so_far(progress)}{left}")
        elif progress.kind in ("resumed", "finishing"):
            self._line(progress.message)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveTable:
    """The latest trials, what is being probed, the best so far, and what is left; fits 80 columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._last: Progress | None = None
        self._since = time.monotonic()

    def __enter__(self) -> Callable[[Progress], None]:
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=2, transient=True)
        self._live.start()
        return self._take

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._last is not None:
            self._console.print(_table(self._last, len(self._last.trials)))
            if any(trial.final.doubts for trial in self._last.trials):
                self._console.print(Text("? in doubt: the report says why", style="dim"))

    def _take(self, progress: Progress) -> None:
        self._last, self._since = progress, time.monotonic()

    def _render(self) -> RenderableType:
        if self._last is None:
            waited = format_seconds(time.monotonic() - self._since)
            return Text(f"reading device, model and data ... {waited}", style="dim")
        parts: list[RenderableType] = [_table(self._last, ROWS)]
        if self._last.kind in ("probing", "confirming"):
            doing = f"{self._last.kind} {self._last.number}: {_told(self._last)}"
            parts.append(
                Text(f"{doing} ({format_seconds(time.monotonic() - self._since)})", overflow="ellipsis", no_wrap=True)
            )
        if self._last.kind in ("preparing", "finishing"):
            parts.append(Text(f"{self._last.message} ({format_seconds(time.monotonic() - self._since)})"))
        parts.append(Text(_left(self._last) + _best_so_far(self._last), style="dim"))
        return Group(*parts)


def _table(progress: Progress, rows: int) -> Table:
    trials = list(progress.trials)
    return trials_table(trials[-rows:] if rows else [], progress.best, trials[0] if trials else None)


def _told(progress: Progress) -> str:
    configuration = progress.configuration
    return "" if configuration is None else configuration.unlike(_baseline(progress))


def _baseline(progress: Progress, trial: Trial | None = None) -> Configuration | None:
    """The baseline's configuration, to tell others by what differs; None for the baseline itself."""
    first = progress.trials[0] if progress.trials else None
    return first.configuration if first and (trial is None or trial.number != first.number) else None


def trials_table(trials: list[Trial], best: Trial | None, baseline: Trial | None = None) -> Table:
    """Trial, configuration (as far as it is not the baseline's), outcome, samples/s with interval, peak memory; the best one
    marked."""
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold", ratio=1)
    table.add_column("outcome", overflow="fold", min_width=9)
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    for trial in trials:
        base = baseline if baseline is not None and baseline.number != trial.number else None
        is_best = best is not None and trial.number == best.number
        style = "bold green" if is_best else "" if trial.feasible else "dim"
        mark = f"{trial.number}*" if is_best else str(trial.number)
        table.add_row(
            mark,
            Text(short(trial, base)),
            _short_outcome(trial),
            f"{speed_text(trial)}{' ?' if trial.final.doubts else ''}",
            format_bytes(trial.peak_bytes),
            style=style,
        )
    return table


def short(trial: Trial, base: Trial | None = None) -> str:
    """The configuration, as far as it is not the base's, without the names that its values make plain."""
    configuration = trial.configuration
    words = [f"{configuration.micro_batch_size}x{configuration.gradient_accumulation_steps}"]
    if configuration.data_parallel_size > 1:
        words[0] += f"x{configuration.data_parallel_size}"
    known = base.configuration.values if base is not None else {}
    for name, value in configuration.levers:
        if name == RANKS or known.get(name) == value:
            continue
        plain = name in ("precision", "optimizer")
        words.append(
            str(value)
            if plain
            else f"{name.replace('checkpointing', 'ckpt').replace('pin_memory', 'pin')}={word(value)}"
        )
    return " ".join(words)


def _short_outcome(trial: Trial) -> str:
    if trial.feasible:
        early = " (early)" if trial.final.ended_early else ""
        return "confirmed" if trial.confirmed else f"ok{early}"
    return {"out_of_memory": "no memory", "non_finite_loss": "NaN loss", "timed_out": "timed out"}.get(
        trial.final.outcome.value, trial.final.outcome.value
    )


def _best_so_far(progress: Progress) -> str:
    return (
        f"; best so far {speed_text(progress.best)} samples/s (trial {progress.best.number})" if progress.best else ""
    )


def _left(progress: Progress) -> str:
    time_left = f", {format_seconds(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{progress.probes_left} probe(s) left{time_left}"
