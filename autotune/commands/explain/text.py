"""An explanation in words: for a terminal of 80 columns, and as a page."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.core.configuration import word
from autotune.core.units import format_bytes, format_duration, format_interval
from autotune.report.markdown import markdown_text, one_line

WIDTH = 80

Told = Mapping[str, Any]

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
"""Parts of a step and what people call them."""


def explanation_lines(told: Told) -> list[str]:
    """The whole explanation for a terminal of 80 columns. told: `Explanation.to_dict()`."""
    lines = _wrapped(f"{told['name']}: {told['sentence']}")
    for title, paragraphs in _sections(told):
        lines += ["", *_wrapped(title)]
        for one in paragraphs:
            lines += _wrapped(one, "  ", "    ")
    for title, names, rows in _tables(told):
        lines += ["", *_table((title, *names), rows)]
    return lines


def explanation_markdown(told: Told) -> str:
    """The same as a page: explanation.md."""
    title = f"# Where the speed-up of {markdown_text(told['name'])} comes from"
    parts = [title, "", markdown_text(told["sentence"]), ""]
    for title, paragraphs in _sections(told):
        parts += [f"## {title}", "", *(f"- {markdown_text(one)}" for one in paragraphs), ""]
    for title, names, rows in _tables(told):
        parts += [f"## {title}", "", f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        parts += [*(f"| {' | '.join(map(markdown_text, row))} |" for row in rows), ""]
    return "\n".join(parts)


# Sections: a title and its paragraphs -----------------------------------------------------------------------------


def _sections(told: Told) -> Iterable[tuple[str, list[str]]]:
    every = [
        ("The path, one setting a step", _path(told)),
        ("Each setting taken back alone from the answer", _taken_back(told)),
        ("What did not run on the way", [f"{one['text']}: {one['outcome']}" for one in told["did_not_run"]]),
        ("What holds a step up", _bounds(told)),
        ("What was tried in place of the answer's values", _alternatives(told["alternatives"])),
        ("The settings", [_setting(name, one) for name, one in told["levers"].items()]),
        ("Warnings and notes", _warnings(told)),
    ]
    return [(title, paragraphs) for title, paragraphs in every if paragraphs]


def _path(told: Told) -> list[str]:
    start, legs = told["start"], told["path"]
    if start is None:
        return []
    own = "your settings" if told["starts_at_the_baseline"] else "the nearest to your settings that runs"
    lines = [f"{own}: {start['text']}: {_speed_and_peak(start)}"]
    if not told["starts_at_the_baseline"]:
        lines.insert(0, f"your settings do not run here: {told['baseline']['outcome']}")
    for number, leg in enumerate(legs, 1):
        together = " (only together)" if leg["together"] else ""
        lines.append(f"{number}. {leg['sentence']}{together}; {leg['verdict']}; now {_speed_and_peak(leg['after'])}")
    if legs:
        gains = " x ".join("-" if leg["gain"] is None else f"{leg['gain']:.3f}" for leg in legs)
        lines.append(f"{gains} = {told['product']:.3f} over {told['rounds']} round(s)" if told["product"] else gains)
        lines.append(f"order: {told['order']}")
    return lines


def _taken_back(told: Told) -> list[str]:
    lines = []
    for one in told["taken_back"]:
        if one["gain"] is None:
            lines.append(f"{one['change']}: needed: without it {one['why']}")
        else:
            lines.append(f"{one['change']}: {_gain(one, 'gain')}: {one['why']}; {one['verdict']}")
    together, alone = told["together"], told["taken_back_product"]
    if together is not None and alone is not None:
        said = f"one by one {alone:.2f}x, in all {told['total']:.2f}x; together {_gain(told, 'together')}: "
        if told["together_low"] > 1:
            said += "that much is gained only by several together, and lost with each of them"
        elif told["together_high"] is not None and told["together_high"] < 1:
            said += "several gain partly the same, so that each is missed less"
        else:
            said += "nothing beyond noise, each gains its own"
        lines.append(said)
    return lines


def _bounds(told: Told) -> list[str]:
    known = [("your settings", told["bound_before_reason"]), ("the answer", told["bound_reason"])]
    return [f"{name}: {why}" for name, why in known if why]


def _alternatives(every: Sequence[Told]) -> list[str]:
    return [
        f"{one['lever']} {word(one['value'])}: "
        + (
            one["why"]
            if one["times_as_fast"] is None
            else f"{_gain(one, 'times_as_fast')} of the answer's speed in its best trial, {one['trial']}"
            + (f"; {one['why']}" if one["why"] else "")
        )
        for one in every
    ]


def _setting(name: str, one: Told) -> str:
    value = word(one["value"])
    was = "fixed" if one["fixed"] else "as you had it"
    if not one["fixed"] and one["value"] != one["baseline"]:
        was = f"yours: {word(one['baseline'])}"
    return f"{name} {value} ({was}). {one['summary']}"


def _warnings(told: Told) -> list[str]:
    every = [told["start"], *(leg["after"] for leg in told["path"]), *(one["without"] for one in told["taken_back"])]
    trials = {one["text"]: one for one in every if one}
    seen = [f"warnings of {text}: {'; '.join(one['warnings'])}" for text, one in trials.items() if one["warnings"]]
    return [*seen, *(f"memory: {one}" for one in told["memory_problems"]), *(f"note: {one}" for one in told["notes"])]


# Tables -----------------------------------------------------------------------------------------------------------


def _tables(told: Told) -> Iterable[tuple[str, tuple[str, str], list[tuple[str, ...]]]]:
    names = ("your settings", "the answer")
    split = [told["step"][one] for one in ("baseline", "answer")]
    rows = [
        (said, *(format_duration(one[name]) for one in split))
        for name, said in STEP.items()
        if any(one[name] is not None for one in split)
    ]
    if rows:
        yield "What a step takes", names, rows
    memory = [told["memory"].get(one) for one in ("baseline", "answer")]
    peaks = ("measured peak", *(format_bytes(told[one]["peak_bytes"]) for one in ("baseline", "answer")))
    if any(memory):
        kinds = next(one for one in memory if one)["split"]
        split_rows: list[tuple[str, ...]] = [
            (kind.replace("_", " "), *("-" if one is None else format_bytes(one["split"][kind]) for one in memory))
            for kind in kinds
        ]
        total = ("estimated peak", *("-" if one is None else format_bytes(one["peak_bytes"]) for one in memory))
        yield "What memory is for, by the estimate", names, [*split_rows, total, peaks]
    stages = [told[one]["stage_peak_bytes"] for one in ("baseline", "answer")]
    by_stage: list[tuple[str, ...]] = [
        (stage, *(format_bytes(one.get(stage)) for one in stages)) for stage in dict.fromkeys([*stages[0], *stages[1]])
    ]
    if by_stage:
        yield "Highest memory by stage, measured", names, [*by_stage, peaks]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["{:<38}{:>20}{:>20}".format(*head)] + ["  {:<36}{:>20}{:>20}".format(*row) for row in rows]


# Small things -----------------------------------------------------------------------------------------------------


def _wrapped(text: str, first: str = "", then: str = "  ") -> list[str]:
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=first, subsequent_indent=then)


def _speed_and_peak(trial: Told) -> str:
    if trial["samples_per_second"] is None:
        return str(trial["outcome"])
    high = trial["samples_per_second_high"]
    infinite = float("inf") if high is None else high
    speed = format_interval(trial["samples_per_second"], trial["samples_per_second_low"], infinite)
    return f"{speed} samples/s, peak {format_bytes(trial['peak_bytes'])}"


def _gain(told: Told, name: str) -> str:
    """`1.31x (1.22 to 1.40)`."""
    high = told[f"{name}_high"]
    return f"{told[name]:.2f}x ({told[f'{name}_low']:.2f} to {'inf' if high is None else f'{high:.2f}'})"
