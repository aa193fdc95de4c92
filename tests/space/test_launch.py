"""The command that starts a training on several ranks."""

import pytest

from autotune.space.launch import on_ranks

RUN = "-m torch.distributed.run --nproc-per-node 2"


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("python train.py -u", f"python {RUN} train.py -u"),
        ("python -m pkg.train --bf16", f"python {RUN} -m pkg.train --bf16"),
        ("python3 -u -O train.py", f"python3 -u -O {RUN} train.py"),
        ("python -W ignore -Xdev -u -m pkg.train", f"python -W ignore -Xdev -u {RUN} -m pkg.train"),
        ("python", f"python {RUN}"),
    ],
)
def test_python_s_own_options_stay_in_front_of_the_launcher(command: str, launched: str) -> None:
    assert " ".join(on_ranks(command.split(), 2)) == launched
