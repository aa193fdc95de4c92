"""The guides' ladder on CUDA: all nine of their rungs, fp16 and the 8-bit optimizer among them."""

from pathlib import Path

import pytest

from autotune.commands.guide.ladder import LADDERS
from autotune.commands.guide.run import guide

pytestmark = pytest.mark.gpu


def test_the_whole_ladder_runs_on_the_card_as_the_guides_have_it(tmp_path: Path) -> None:
    done = guide("bert-mini", device="cuda", sequence_length=64, output_dir=str(tmp_path))
    names = [method.name for method in LADDERS["2022"].methods]
    assert [method.name for method in done.methods if not method.instead_of] == names
    for one in done.rows:
        # What the installation cannot do (no bitsandbytes) is told; all else runs.
        assert bool(one.method.ruled_out) is not bool(one.speed), one.to_dict()["reason"]
        assert one.trial is not None
        if one.speed:
            assert one.trial.measurement.settings["precision"] == one.method.settings["precision"]
    assert next(item for item in done.rows if item.method.name == "fp16").speed
    assert (Path(done.folder) / "guide.md").exists()
