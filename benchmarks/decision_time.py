"""How long the sampler takes to choose a probe in a space of nearly 5,000 configurations.

python benchmarks/decision_time.py: into reports/decision_time.md; a few seconds, in an interpreter as users have it.
"""

import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import write_table  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.trial import Trial  # noqa: E402
from autotune.judge.standing import Standing  # noqa: E402
from autotune.sampler.physics import PhysicsSampler  # noqa: E402
from autotune.sampler.policy import Why  # noqa: E402
from autotune.sampler.warm_start import WarmStart  # noqa: E402
from autotune.space.search_space import SearchSpace  # noqa: E402
from tests.replay_probe import recorded  # noqa: E402

SPANS = {
    "first (the baseline is known)": (1, 2),
    "2nd to 10th": (2, 11),
    "11th to 20th": (11, 21),
    "21st to 40th": (21, 41),
}


def decision_times() -> tuple[int, list[float]]:
    """(configurations of the space, seconds of each decision on forty probes of them)."""
    sizes = tuple(2**power for power in range(10))
    values = {
        "micro_batch_size": sizes,
        "checkpointing": ("none", "full"),
        "precision": ("fp32", "tf32", "fp16", "bf16"),
    }
    values |= {"optimizer": ("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd")}
    values |= {"workers": (0, 1, 2, 4, 8, 16), "pin_memory": (True, False)}
    baseline = Configuration.exact(
        512, 8, {name: known[0] for name, known in values.items() if name != "micro_batch_size"}
    )
    space = SearchSpace("large", 512, values, baseline)
    limit = 10**10
    sampler = PhysicsSampler(space, WarmStart(limit, lambda one: 1e9 + 2e7 * one.micro_batch_size))
    times: list[float] = []
    trials: list[Trial] = []
    for number in range(41):
        begun = time.perf_counter()
        choice = sampler.choose(Standing(tuple(trials)))
        times.append(time.perf_counter() - begun)
        tried = {trial.configuration for trial in trials}
        chosen = choice.configuration if choice.why is Why.NEW else next(left for left in space if left not in tried)
        assert chosen is not None
        speed = 100.0 * chosen.micro_batch_size**0.3 * (1 + number % 3 / 50)
        measurement = recorded(chosen, speed, 10**9 + 2 * 10**7 * chosen.micro_batch_size, limit)
        trials.append(Trial(number, chosen, measurement))
    return space.size, times


def main() -> None:
    decision_times()  # imports and caches
    size, times = decision_times()
    lines = ["| decision | median, ms | longest, ms |", "|---|---|---|"]
    for name, (begin, end) in SPANS.items():
        known = [1000 * one for one in times[begin:end]]
        lines.append(f"| {name} | {median(known):.1f} | {max(known):.1f} |")
    lines += ["", f"{size} configurations, all of them scored; the first decision makes the model of them."]
    write_table(ROOT / "reports" / "decision_time.md", "How long a decision takes", lines)


if __name__ == "__main__":
    main()
