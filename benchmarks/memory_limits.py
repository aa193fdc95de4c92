"""Real searches on the CPU under eight memory limits: how many probes run out of memory, and how much caution leaves.

python benchmarks/memory_limits.py [MODEL]: into reports/memory_limits.md; about eight minutes on an idle machine. The
probes are live, the loop is the real one, confirmation is left out. Nothing is known of the device but its estimate.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fidelity import asked  # noqa: E402
from machine import write_table  # noqa: E402

from autotune.core.environment import Environment  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.space.build import build_space  # noqa: E402
from autotune.study.loop import open_study, search  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402
from autotune.study.warm_start import build_warm_start  # noqa: E402

SIZE, LENGTH, PROBES = 32, 64, 10
LIMITS = (140, 180, 220, 260, 320, 400, 500, 700)
"""MiB; the baseline of the built-in model needs about 250."""


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "gpt2-mini"
    lines = [
        f"{model}, a global batch of {SIZE}, {LENGTH} tokens, at most {PROBES} probes each, the baseline's among them.",
        "",
        "| limit | probes | out of memory, the baseline's own apart | baseline | best found | peak of the best | why it ended |",
        "|---|---|---|---|---|---|---|",
    ]
    starved = 0
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
        request = tuning_request(model, SIZE, sequence_length=LENGTH, device="cpu")
        wanted = {"request": request.to_dict(), "cache": str(Path(scratch) / "cache")}
        workload = Workload.from_dict(asked(host, "prepare", wanted))
        space = build_space(request, environment, workload, {})
        for limit in LIMITS:
            allowed = limit * 2**20
            knowledge = build_warm_start(host, environment, workload, space, {}, allowed)
            plan = Plan(PROBES, request.objective, allowed, confirmation_rounds=0)
            folder = Path(scratch) / str(limit)
            folder.mkdir()
            study = open_study(folder, space, plan, knowledge)
            probe = LiveProbe(host, environment, workload, {}, allowed, study.probe_folder)
            stop = search(study, probe)
            failed = sum(trial.measurement.outcome is Outcome.OUT_OF_MEMORY for trial in study.trials[1:])
            starved += bool(failed)
            best = study.standing.answer
            found = f"{best.configuration}: {best.samples_per_second:.0f} samples/s" if best else "nothing"
            peak = f"{(best.peak_bytes or 0) / 2**20:.0f} MiB" if best else ""
            baseline = study.trials[0].measurement.outcome.value.replace("_", " ")
            lines.append(
                f"| {limit} MiB | {len(study.trials)} | {failed} | {baseline} | {found} | {peak} | {stop.text} |"
            )
            print(lines[-1], flush=True)
    lines += ["", f"{starved} of {len(LIMITS)} searches ran out of memory after the baseline."]
    write_table(ROOT / "reports" / "memory_limits.md", "Real searches under eight memory limits", lines)


if __name__ == "__main__":
    main()
