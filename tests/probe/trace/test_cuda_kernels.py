"""Steps on CPU tensors with CUDA's kernels replaced by hand make what torch's dispatch makes of CUDA tensors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autotune.probe.trace.cuda_kernels import autocast_list

ROOT = Path(__file__).parents[3]
MODELS = ("bert", "llama", "odd bert", "gpt2", "t5", "vit", "deberta-v2", "modernbert", "bart")


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a build of torch for CPUs dispatch tensors of CUDA."""
    if torch.cuda._is_compiled():
        pytest.skip("this torch has CUDA's own hooks, which want a card")
    library, folder = tmp_path_factory.mktemp("fake_cuda") / "fake_cuda.so", Path(torch.__file__).parent
    source = Path(__file__).with_name("fake_cuda.cpp")
    linked = [f"-L{folder}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{folder}/lib"]
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{folder}/include"]
    subprocess.run(["g++", *options, str(source), *linked, "-o", str(library)], check=True, timeout=300)
    return library


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_cpu_tensors_makes_what_cuda_s_dispatch_makes(fake_cuda: Path, name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.probe.trace.fake_cuda", str(fake_cuda), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout
    rows = [json.loads(line) for line in answer.splitlines() if line.startswith("[")]
    assert len(rows) == (12 if name == "deberta-v2" else 24)
    for way, ours, real, same_tape, differing in rows:
        # Single numbers that a model makes on the CPU are copied to a card.
        only_numbers = not differing["ours only"] and all(name.endswith("[]") for name in differing["CUDA's only"])
        assert same_tape or (name == "deberta-v2" and only_numbers and ours == real), (way, ours, real, differing)


def test_the_lists_of_autocast_are_those_of_the_installed_torch() -> None:
    lists = {name: autocast_list(name) for name in ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE")}
    assert {"linear", "bmm"} <= set(lists["LOWER_PRECISION_FP"])
    assert {"exp", "pow.Scalar", "layer_norm"} <= set(lists["FP32"])
    assert {"softmax.int", "sum.dim_IntList"} <= set(lists["FP32_SET_OPT_DTYPE"])
    assert {"addcmul", "index_put"} <= set(lists["PROMOTE"])
    listed = {f"aten::{name}" for names in lists.values() for name in names}
    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    # Norms write float32 by another overload; cuDNN's functions, in builds with CUDA, and refused losses are no list's.
    norms = {"norm.Scalar", "norm.ScalarOpt_dim", "norm.names_ScalarOpt_dim"}  # the last one before torch 2.13
    cudnn = {"_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose", "_convolution.deprecated"}
    newer = {"linalg_matrix_sqrth"}  # from torch 2.15 on
    assert registered - listed <= {f"aten::{name}" for name in norms | cudnn | newer | {"binary_cross_entropy"}}
