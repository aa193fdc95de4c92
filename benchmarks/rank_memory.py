"""Memory of the machine while several ranks build a model of a billion parameters and shard it.

python benchmarks/rank_memory.py [FORMER [RANKS]]: into reports/rank_memory.md; some minutes, with 20 GiB of free memory. Each
case is one probe on the CPU: its ranks are sharded by FSDP, which the search itself tries on GPUs alone. Summed are the
proportional set sizes of the host and of all below it, every 0.1 s. FORMER: a checkout of an earlier version, measured as well;
its ranks had the whole model each. RANKS: 2, or by default 2,4.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [os.environ.get("RANK_MEMORY_CODE", str(ROOT)), str(Path(__file__).parent)]

import psutil  # noqa: E402
from accelerate import PartialState  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402
from fidelity import asked  # noqa: E402
from machine import write_table  # noqa: E402
from transformers import AutoConfig, Trainer  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.errors import InvalidRequest  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.core.units import format_bytes  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.order import Timing  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.space.build import build_space  # noqa: E402
from autotune.workload.model.pickling import sent  # noqa: E402

LENGTH = 8
QUICK = Timing(untimed_least=1, untimed_most=1, timed_least=1, timed_most=1)
LAYERS = {2: 16, 4: 7}
"""Ranks -> layers of the model: four whole models of a billion parameters do not fit 24 GiB."""

SIZES = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}


class ShardingTrainer(Trainer):
    """Shards on a CPU too: accelerate (1.15, `AcceleratorState`) does on accelerators alone."""

    def create_accelerator_and_postprocess(self) -> None:
        PartialState().distributed_type = DistributedType.MULTI_GPU
        super().create_accelerator_and_postprocess()


class Watcher(threading.Thread):
    """The largest sum of the proportional set sizes of a process and of all below it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.top, self.peak, self.first, self.ended = psutil.Process(pid), 0, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            total = 0
            for process in (self.top, *self.top.children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    total += process.memory_full_info().pss
            self.first = self.first or total
            self.peak = max(self.peak, total)


def prepared(host: ProbeHost, folder: Path, layers: int) -> tuple[Environment, Workload]:
    """The device, and a model of so many layers."""
    AutoConfig.for_model("llama", num_hidden_layers=layers, vocab_size=32000, **SIZES).save_pretrained(folder / "model")
    environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
    request = tuning_request(str(folder / "model"), 4, sequence_length=LENGTH, device="cpu", task="causal-lm")
    wanted = {"request": request.to_dict(), "cache": str(folder / "cache")}
    return replace(environment, cpu_count=max(4, environment.cpu_count)), Workload.from_dict(
        asked(host, "prepare", wanted)
    )


def measured(ranks: int) -> dict[str, float | str]:
    """One probe on so many ranks: bytes of the model, of the processes before, and at their peak; seconds."""
    values = {"data_parallel_size": ranks, "fsdp": "full_shard", "optimizer": "sgd", "precision": "fp32", "workers": 0}
    with (
        ProbeHost() as first,
        ProbeHost(sent({"trainer_class": ShardingTrainer})) as host,
        tempfile.TemporaryDirectory() as scratch,
    ):
        environment, workload = prepared(first, Path(scratch), LAYERS[ranks])
        host.start()
        assert host.pid is not None
        probe = LiveProbe(
            *(host, environment, workload, {"max_grad_norm": 0.0}, 1 << 40),
            lambda slot: Path(scratch) / "probe",
            timings=(QUICK, QUICK),
        )
        watcher, begun = Watcher(host.pid), time.monotonic()
        watcher.start()
        measurement = probe(Configuration.exact(ranks, 1, values), ProbeOptions(Slot(0), 900.0))
        watcher.ended.set()
        watcher.join()
    return {
        "model": workload.parameter_bytes,
        "before": watcher.first,
        "peak": watcher.peak,
        "seconds": time.monotonic() - begun,
        "outcome": measurement.outcome.value
        + f" {measurement.reason}" * (measurement.outcome is not Outcome.COMPLETED),
    }


def refused() -> str:
    """The line with which four ranks are refused on a machine with too little memory."""
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        environment, workload = prepared(host, Path(scratch), LAYERS[2])
        request = tuning_request(
            workload.name, 4, device="cpu", space="multi-gpu", fix={"data_parallel_size": 4, "precision": "fp32"}
        )
        try:
            build_space(request, replace(environment, host_free_bytes=16 << 30), workload, {})
        except InvalidRequest as error:
            return str(error)
    return "not refused"


def main() -> None:
    """All cases, each in an interpreter of its own, which prints it as JSON."""
    if sys.argv[1:2] == ["case"]:
        print(json.dumps(measured(int(sys.argv[2]))))
        return
    versions = {"now": ROOT} | ({"former": Path(sys.argv[1]).resolve()} if sys.argv[1:] else {})
    several = map(int, sys.argv[2].split(",")) if sys.argv[2:] else LAYERS
    lines = ["| version | ranks | model | peak of all processes | of it before the probe | seconds | outcome |"]
    lines.append("|---|---|---|---|---|---|---|")
    for ranks in several:
        for name, code in versions.items():
            variables = {**os.environ, "RANK_MEMORY_CODE": str(code), "PYTHONPATH": str(code)}
            done = subprocess.run(
                [sys.executable, __file__, "case", str(ranks)],
                env=variables,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            facts = json.loads(done.stdout.splitlines()[-1])
            sizes = " | ".join(format_bytes(facts[part]) for part in ("model", "peak", "before"))
            lines.append(f"| {name} | {ranks} | {sizes} | {facts['seconds']:.0f} | {facts['outcome']} |")
            print(lines[-1], flush=True)
    lines += ["", "Four ranks in 16 GiB are refused before anything starts:", "", f"> {refused()}"]
    write_table(ROOT / "reports" / "rank_memory.md", "Memory of the machine while ranks build a model", lines)


if __name__ == "__main__":
    main()
