"""torch.compile: usable backends, graphs compiled so far, and the folder of compiled code."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.probe.order import TrainingOrder
from autotune.probe.process.ranks import this_rank
from autotune.space.settings.compile_backend import NAMES

CACHE, KERNELS = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
"""Folders of inductor's graphs and kernels (torch._inductor.runtime.cache_dir_utils)."""

PACKAGES = {"onnxrt": "onnxruntime", "openxla": "torch_xla", "tvm": "tvm"}
"""Backend -> the package that it needs."""


COMPILERS = ("g++", "clang++", "c++")
"""Compilers that inductor looks for without CXX (torch._inductor.config.cpp.cxx)."""


def graphs_compiled() -> int:
    """Graphs that torch has compiled, recompilations included."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def keep_compiled(order: TrainingOrder) -> None:
    """Set the folder of this training's compiled code, which lives as long as the host."""
    # The scratch folder of the first rank is in the host's, that of each other one in the first's.
    os.environ |= compiled_variables(order, Path(tempfile.gettempdir()).parents[1 if this_rank() else 0])


def compiled_variables(order: TrainingOrder, parent: Path) -> dict[str, str]:
    """Variables of the folder of this training's compiled code, below the parent.

    All first probes share one: many kernels do not depend on the micro-batch size. A trial's first round finds one of its own
    empty and compiles as a first real run does; its later rounds, and later trainings at its settings, find that full. All ranks
    share one, as in a real run.
    """
    place = parent / "compiled"
    if order.kind != "probe" or order.confirmation:
        content = json.dumps(order.configuration.to_dict(), sort_keys=True)
        place = parent / f"compiled-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if order.kind == "probe" and order.confirmation == 1:
        shutil.rmtree(place, ignore_errors=True)
    return {CACHE: str(place), KERNELS: str(place / "triton")}


def backends(on_cpu: bool) -> dict[str, str | None]:
    """Backend -> None if it can be used here, else why not; compiles nothing."""
    return {name: _why_not(name, on_cpu) for name in NAMES}


def _why_not(name: str, on_cpu: bool) -> str | None:
    import torch._dynamo
    from accelerate.utils import TorchDynamoPlugin

    if not torch._dynamo.is_dynamo_supported():
        return "torch cannot compile on this system or Python"
    if name not in torch._dynamo.list_backends(exclude_tags=()):
        return "this torch offers no such backend"
    try:
        TorchDynamoPlugin(backend=name)
    except ValueError:
        return "this accelerate knows no such backend"
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        return f"{PACKAGES[name]} is not installed"
    if name == "cudagraphs" and on_cpu:
        return "it records CUDA graphs: there is no GPU"
    return _no_compiler(on_cpu) if name == "inductor" else None


def _no_compiler(on_cpu: bool) -> str | None:
    """Reason why inductor cannot make kernels: in C++ on a CPU; with Triton, whose launchers are C, on a GPU."""
    if not on_cpu and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    named = os.environ.get("CXX" if on_cpu else "CC", "").split()[:1]
    compilers = named or (COMPILERS if on_cpu else ("gcc", "clang", "cc"))
    if any(map(shutil.which, compilers)):
        return None
    return f"there is no {'C++' if on_cpu else 'C'} compiler ({', '.join(compilers)}): apt install g++"
