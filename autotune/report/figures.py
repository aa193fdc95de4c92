"""Pictures of a search, as SVG: speed against memory, with what did not fit and what was allowed."""

from collections.abc import Sequence
from pathlib import Path

from autotune.objective import pareto_front
from autotune.trial import Trial

MIB = 2**20


def speed_against_memory(
    path: Path, trials: Sequence[Trial], best: Trial | None, allowed_bytes: int, title: str = ""
) -> None:
    """Write an SVG: samples / second over peak memory in MiB, one mark a trial.

    The baseline is a square, the best a star, the Pareto front a line; out-of-memory trials stand at speed 0 beyond the
    dashed line of what was allowed. Raises OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    able = [trial for trial in trials if trial.feasible and trial.samples_per_second is not None]
    for trial in able:
        speed = trial.samples_per_second
        assert speed is not None
        kind, size, color = "o", 5, "#4878a8"
        if trial.number == 0:
            kind, size, color = "s", 8, "#444444"
        if best is not None and trial.number == best.number:
            kind, size, color = "*", 15, "#d1495b"
        low, high = speed - max(0.0, speed.low), min(speed.high, 2 * speed) - speed
        label = "best" if kind == "*" else "baseline" if kind == "s" else None
        axes.errorbar(
            (trial.peak_bytes or 0) / MIB,
            speed.value,
            [[low], [high]],
            marker=kind,
            markersize=size,
            color=color,
            linestyle="none",
            elinewidth=1,
            label=label,
        )
    lost = [t for t in trials if t.measurement.outcome == "out_of_memory"]
    if lost:
        places = [((t.measurement.held_bytes or 0) + (t.measurement.refused_bytes or 0)) / MIB for t in lost]
        axes.plot(
            places, [0] * len(places), "x", color="#777777", clip_on=False, label="out of memory (held + refused)"
        )
    front = pareto_front(trials)
    if len(front) > 1:
        memory = [(trial.peak_bytes or 0) / MIB for trial in front]
        axes.plot(memory, [float(t.samples_per_second or 0) for t in front], color="#4878a8", alpha=0.4, zorder=0)
    if allowed_bytes / MIB < 2 * max([(t.peak_bytes or 0) / MIB for t in able] or [0]):
        axes.axvline(allowed_bytes / MIB, color="#d1495b", linestyle="--", linewidth=1, label="allowed")
    axes.set(xlabel="peak memory, MiB", ylabel="samples / second", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if able or lost:
        figure.legend(frameon=False, loc="outside lower center", ncols=4)
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(path, format="svg", metadata={"Date": None})
