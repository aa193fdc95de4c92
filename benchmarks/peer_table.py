"""What peers found and how it trained, as lines of Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 2**20
DEFAULTS, OURS = "defaults", "autotune"
PEERS = {
    DEFAULTS: "the Trainer's defaults, accumulation by hand",
    "accelerate": "accelerate's `find_executable_batch_size`",
    "auto_find_batch_size": "the Trainer's `auto_find_batch_size`",
    "lightning": "Lightning's `Tuner.scale_batch_size`, accumulation by hand",
    "hyperparameter_search": "the Trainer's `hyperparameter_search`, Optuna",
    "optuna": "Optuna's TPE over a plain script",
    OURS: "`autotune search`",
}
NOTES = """Each ran once, in a process of its own and under the limit (RLIMIT_DATA above what its imports hold), used as its
documentation shows ([finders.py](../benchmarks/finders.py) says where). Then one plain training script, which knows none
of them, trained every configuration in interleaved rounds under the same limit; samples/s are medians, with the batch that is
really trained. Equal configurations are trained once. Trainings and seconds are what the finding cost, imports counted.

- The three searches have the same number of seconds, and end before with the same number of trials.
- accelerate, `auto_find_batch_size` and Lightning look for a batch size that fits, not for speed. What failed tries leave behind
  in the one process is missing for the next. The first two work inside the training: they train an epoch of the texts or images.
- accelerate: its own example of automatic accumulation, which divides the global batch by what it found and drops the rest.
- `auto_find_batch_size`: from the global batch down; accumulation does not follow, so the global batch shrinks.
- Lightning: its defaults; the largest divisor of the global batch below what it found, accumulated by hand.
- `hyperparameter_search`: pairs that keep the global batch, optimizer, workers. Its space cannot set precision or checkpointing:
  a trial's values arrive after arguments and model are made. Speed comes from a callback; `catch` keeps the study going after
  an out-of-memory, which its sampler then does not know of.
- Optuna's TPE: the space of `autotune search`, each trial the plain script in a process of its own, out of memory worth 0.
- `autotune search`: 5 % of the limit stays free, nothing known of the device. Its trainings include the confirmation's rounds,
  the losses against fp32's, evaluation and checkpoint.
- Texts: a try of a few steps may not meet the longest ones, and in 16 bits on a CPU torch keeps compiled kernels for every length
  that it has met. So what fitted in a try may not fit in an epoch. The rounds train an epoch each, in three orders.
- LoRA: rank and targets are part of the task, and the same for all.
- The rounds run minutes after a search. The speed of a shared machine may be another one then: hold the promised speed-up
  against the measured one, not the speeds."""
SETTINGS = {
    "activation_checkpointing": {True: "checkpointing"},
    "bf16": {True: "bf16"},
    "optim": {"adamw_torch": "adamw_torch", "adamw_bnb_8bit": "adamw_bnb_8bit", "adafactor": "adafactor"},
    "dataloader_num_workers": {2: "2 workers", 4: "4 workers"},
}
"""How a value that differs from the Trainer's default is said."""


@dataclass(frozen=True)
class Finding:
    """What a peer ended with. arguments: None where it found nothing. started, failed: trainings. seconds: of wall clock.

    said: what it died of, "" where it ended well. promised: `best`, `baseline` and the speed-up as `autotune search --json` has
    them.
    """

    name: str
    arguments: Mapping[str, Any] | None
    model_arguments: Mapping[str, Any]
    started: int
    failed: int
    seconds: float
    said: str = ""
    promised: Mapping[str, Any] | None = None

    @property
    def global_batch_size(self) -> int:
        assert self.arguments
        return self.arguments["per_device_train_batch_size"] * self.arguments["gradient_accumulation_steps"]

    @property
    def configuration(self) -> str:
        """`16 x 3, bf16, 2 workers`: what differs from the Trainer's defaults."""
        if not self.arguments:
            return "nothing"
        sizes = (self.arguments[name] for name in ("per_device_train_batch_size", "gradient_accumulation_steps"))
        said = [words[self.arguments[name]] for name, words in SETTINGS.items() if self.arguments.get(name) in words]
        said += ["frozen weights in bf16"] if self.model_arguments.get("dtype") == "bfloat16" else []
        return ", ".join([" x ".join(map(str, sizes)), *said])


@dataclass(frozen=True)
class Judged:
    """rounds: what the plain script printed, or {"said": what it died of}."""

    rounds: Sequence[Mapping[str, Any]]

    @property
    def fits(self) -> bool:
        return not any("said" in measurement for measurement in self.rounds)

    @property
    def speeds(self) -> list[float]:
        """Samples / second of each round that ended."""
        return [measurement["samples_per_second"] for measurement in self.rounds if "said" not in measurement]

    @property
    def speed(self) -> float | None:
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def peak_bytes(self) -> int:
        return max((measurement["peak_bytes"] for measurement in self.rounds if "said" not in measurement), default=0)


def section(title: str, size: int, findings: Sequence[Finding], judged: Mapping[str, Judged]) -> list[str]:
    """A table of one task, what stands out, and what ours promised against what the plain script got."""
    lines = [f"## {title}", ""]
    lines += ["| found by | configuration | global batch | fits | samples/s afterwards | peak | trainings | seconds |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row(finding, size, judged.get(finding.name), judged))} |" for finding in findings]
    said = [f"{PEERS[finding.name]} ended with: {finding.said}" for finding in findings if finding.said]
    said += [f"What {PEERS[name]} found: {item['said']}" for name, got in judged.items() for item in refused(got)]
    lines += ["", *said]
    lines += ["", conclusion(size, findings, judged), "", *promises(findings, judged)]
    return lines


def refused(got: Judged) -> list[Mapping[str, Any]]:
    return [measurement for measurement in got.rounds if "said" in measurement][:1]


def row(one: Finding, size: int, got: Judged | None, judged: Mapping[str, Judged]) -> list[str]:
    trainings = f"{one.started}, {one.failed} failed" if one.failed else str(one.started)
    searched = [trainings, f"{one.seconds:.0f}"]
    if got is None:
        return [PEERS[one.name], one.configuration, "-", "-", "-", "-", *searched]
    exact = str(size) if one.global_batch_size == size else f"**{one.global_batch_size}** instead of {size}"
    fits = "yes" if got.fits else f"**no**: {len(got.rounds) - len(got.speeds)} of {len(got.rounds)} runs"
    base = judged[DEFAULTS].speed
    speed = "-" if got.speed is None else f"{got.speed:.1f}"
    if got.speed and base:
        speed += f" ({got.speed / base:.2f}x)"
    peak = f"{got.peak_bytes / MIB:.0f} MiB" if got.peak_bytes else "-"
    return [PEERS[one.name], one.configuration, exact, fits, speed, peak, *searched]


def conclusion(size: int, findings: Sequence[Finding], judged: Mapping[str, Judged]) -> str:
    """Who is first of those that keep the global batch and fit, and who comes next with another configuration."""
    kept = [
        finding.name
        for finding in findings
        if finding.arguments and finding.global_batch_size == size and judged[finding.name].fits
    ]
    ranked = sorted(kept, key=lambda name: -(judged[name].speed or 0.0))
    if not ranked:
        return "None keeps the global batch and fits."
    first = judged[ranked[0]]
    said = f"Of the {len(kept)} that keep the global batch and fit, {PEERS[ranked[0]]} is first, {first.speed:.1f} samples/s"
    after = next((name for name in ranked if judged[name].rounds != first.rounds), None)
    if after is None:
        return f"{said}."
    close = min(first.speeds) <= max(judged[after].speeds)
    return f"{said}, {PEERS[after]} next, {judged[after].speed:.1f}{' (their rounds overlap)' if close else ''}."


def promises(findings: Sequence[Finding], judged: Mapping[str, Judged]) -> list[str]:
    """What ours said of its answer and of the baseline, held against the plain script."""
    ours = next((finding for finding in findings if finding.name == OURS and finding.promised), None)
    if ours is None or ours.promised is None:
        return []
    lines = [
        "| `autotune search` | promised | got | error | promised peak | got |",
        "|---|---|---|---|---|---|",
    ]
    for which, name in (("best", OURS), ("baseline", DEFAULTS)):
        told, got = ours.promised[which], judged[name]
        value, low, high = (told[f"samples_per_second{end}"] for end in ("", "_low", "_high"))
        speed = f"{value:.1f} ({low:.1f} to {high:.1f}) samples/s | {got.speed or 0:.1f} | "
        speed += f"{value / got.speed - 1:+.1%}" if got.speed else "-"
        lines.append(f"| {which} | {speed} | {told['peak_bytes'] / MIB:.0f} MiB | {got.peak_bytes / MIB:.0f} MiB |")
    value, low, high = (ours.promised[f"speedup{end}"] for end in ("", "_low", "_high"))
    base, ours_after = judged[DEFAULTS].speed, judged[OURS].speed
    if value and low and base and ours_after:
        interval = f"{low:.2f} to {high:.2f}" if high else f"at least {low:.2f}"
        lines.append(
            f"| speed-up | {value:.2f}x ({interval}) | {ours_after / base:.2f}x | {value * base / ours_after - 1:+.1%} | | |"
        )
    return lines
