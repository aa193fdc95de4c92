"""Memory of the machine while several ranks build one model of a billion parameters that they will shard.

python benchmarks/rank_memory.py [BEFORE [RANKS]]: into reports/rank_memory.md; minutes, with 20 GiB of free memory. Each rank is
a process that builds its model as a probe does, and keeps it until all have theirs. Summed are the proportional set sizes of all,
every 0.1 s. BEFORE: a checkout of an earlier version, measured as well; its ranks had the whole model each. RANKS: 2, or by
default 2,4.
"""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [os.environ.get("RANK_MEMORY_CODE", str(ROOT)), str(Path(__file__).parent)]

import psutil  # noqa: E402
from machine import write_table  # noqa: E402
from transformers import AutoConfig  # noqa: E402

from autotune.core.errors import InvalidRequest  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.units import format_bytes  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.queries import read_environment, read_workload  # noqa: E402
from autotune.space.build import build_space  # noqa: E402
from autotune.workload.model.build import build_model, plain_config  # noqa: E402

LAYERS = {2: 16, 4: 7}
"""Ranks -> layers of the model: four whole models of a billion parameters do not fit 24 GiB."""

SIZES = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}


def config(layers: int) -> Any:
    return AutoConfig.for_model("llama", num_hidden_layers=layers, vocab_size=32000, **SIZES)


def build(rank: int, layers: int, ready: Any, ended: Any) -> None:
    """What a rank's process does."""
    workload = Workload("llama", "causal-lm", model_config=plain_config(config(layers)))
    shards = {"sharding_rank": rank} if "sharding_rank" in signature(build_model).parameters else {}
    begun = time.monotonic()
    model = build_model(workload, **shards)
    ready.put((sum(each.numel() * each.element_size() for each in model.parameters()), time.monotonic() - begun))
    ended.wait()


def measured(ranks: int) -> dict[str, float]:
    """Bytes of the model, bytes of all processes at their peak, seconds of the slowest rank."""
    start = multiprocessing.get_context("spawn")
    ready, ended = start.Queue(), start.Event()
    processes = [start.Process(target=build, args=(rank, LAYERS[ranks], ready, ended)) for rank in range(ranks)]
    for process in processes:
        process.start()
    peak, built = 0, []
    while len(built) < ranks:
        total = 0
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                total += psutil.Process(process.pid).memory_full_info().pss
        peak = max(peak, total)
        while not ready.empty():
            built.append(ready.get())
        time.sleep(0.1)
    ended.set()
    for process in processes:
        process.join()
    sizes, seconds = zip(*built, strict=True)
    return {"model": max(sizes), "peak": peak, "seconds": max(seconds)}


def refused() -> str:
    """The line with which four ranks are refused on a machine with too little memory."""
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        config(LAYERS[2]).save_pretrained(Path(scratch, "model"))
        settings = {"space": "multi-gpu", "fix": {"data_parallel_size": 4, "precision": "fp32"}}
        request = tuning_request(
            str(Path(scratch, "model")), 4, sequence_length=8, device="cpu", task="causal-lm", **settings
        )
        environment, workload = read_environment(host, request, None)[0], read_workload(host, request)
        try:
            build_space(request, replace(environment, cpu_count=4, host_free_bytes=16 << 30), workload, {})
        except InvalidRequest as error:
            return str(error)
    return "not refused"


def main() -> None:
    """All cases, each in an interpreter of its own, which prints it as JSON."""
    if sys.argv[1:2] == ["case"]:
        print(json.dumps(measured(int(sys.argv[2]))))
        return
    versions = ({"before": Path(sys.argv[1]).resolve()} if sys.argv[1:] else {}) | {"now": ROOT}
    lines = ["| ranks | model | version | peak of all ranks | seconds |", "|---|---|---|---|---|"]
    for ranks in map(int, sys.argv[2].split(",")) if sys.argv[2:] else LAYERS:
        for name, code in versions.items():
            variables = {**os.environ, "RANK_MEMORY_CODE": str(code), "PYTHONPATH": str(code)}
            case = [sys.executable, __file__, "case", str(ranks)]
            done = subprocess.run(case, env=variables, stdout=subprocess.PIPE, text=True, check=True)
            facts = json.loads(done.stdout.splitlines()[-1])
            sizes = format_bytes(facts["model"]), name, format_bytes(facts["peak"])
            lines.append(f"| {ranks} | {' | '.join(sizes)} | {facts['seconds']:.0f} |")
            print(lines[-1], flush=True)
    lines += ["", "Four ranks of the first model on a machine with 16 GiB are refused before anything starts:", ""]
    lines += [f"> {refused()}"]
    write_table(ROOT / "reports" / "rank_memory.md", "Memory of the machine while ranks build a model", lines)


if __name__ == "__main__":
    main()
