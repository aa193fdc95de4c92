"""The plain loop on a GPU: launched by accelerate with its own file, as the answer says."""

from pathlib import Path

import pytest

from tests.report.exports.answers import FULL, answer, as_known
from tests.report.exports.test_accelerate import accelerate_launch, seen_by, written

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_loop_trains_on_the_gpu_as_the_answer_says(precision: str, tmp_path: Path) -> None:
    said = {"bf16": precision == "bf16", "fp16": precision == "fp16", "tf32": True}
    on_gpu = as_known(FULL) | said | {"use_cpu": False, "dataloader_pin_memory": True, "optim": "adamw_torch_fused"}
    (seen,) = seen_by(tmp_path, accelerate_launch(written(tmp_path, answer(on_gpu))))
    assert seen["device"] == "cuda"
    assert seen["micro_batches"] == [4] * 12
    assert (seen["dtype"], seen["autocast"]) == ({"bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision], True)
    assert seen["layer_runs"] == 2 * 12
    assert seen["fused"]
    assert seen["finite"]
