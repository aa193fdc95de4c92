"""Folders for temporary files, whoever is killed."""

import os
import subprocess
import sys
from pathlib import Path

from autotune.core.scratch import remove_left, scratch_below

HOLDS = (
    "import sys, time; from pathlib import Path; from autotune.core.scratch import scratch_below\n"
    "with scratch_below(Path(sys.argv[1]), '.preparing-') as folder:\n"
    "    (folder / 'copy').write_text('half')\n"
    "    print(folder, flush=True); time.sleep(600)\n"
)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        (killed, living) = (Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout)
        holders[0].kill()
        holders[0].wait()
        (tmp_path / "another").mkdir()
        with scratch_below(tmp_path, ".preparing-") as own:
            assert {*tmp_path.iterdir()} == {own, living, tmp_path / "another"}
            assert not killed.exists()
            remove_left(tmp_path, ".preparing-*")
            assert own.exists()
        assert {*tmp_path.iterdir()} == {living, tmp_path / "another"}
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
    remove_left(tmp_path, ".preparing-*")
    assert {*tmp_path.iterdir()} == {tmp_path / "another"}
