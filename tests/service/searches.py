"""Searches of the service that take seconds: real runners, hosts and children, whose answers are recorded ones."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import RECORDED
from tests.hurry import ROOT

REQUEST: Mapping[str, Any] = {
    "model": "bert-mini",
    "global_batch_size": 16,
    "sequence_length": 8,
    "space": "quick",
    "n_trials": 4,
    "sampler": "random",
    "no_history": True,
}
"""Of a search with four trials and some rounds."""


def study_of(state: Path, search_id: str) -> Path:
    """The folder of the study of a search of REQUEST that has no name."""
    return state / "searches" / search_id / f"bert-mini-{search_id[-8:]}"


class Replaying:
    """What searches that are started with `environment` find on their path. folder: for it, made here.

    probe_s: seconds that a probe takes: with too few, none begins beside another one, and a search repeats them up to its limit.
    Further settings: see `tests/service/replayed/sitecustomize.py`.
    """

    def __init__(self, folder: Path, probe_s: float = 0.2, **settings: Any) -> None:
        folder.mkdir(parents=True)
        self.folder, self._executed, self._hold = folder, folder / "executed", folder / "hold"
        shutil.copy(Path(__file__).parent / "replayed" / "sitecustomize.py", folder)
        files = {"recording": str(RECORDED), "executed": str(self._executed), "hold": str(self._hold)}
        (folder / "settings.json").write_text(json.dumps({**files, "probe_s": probe_s, **settings}))

    @property
    def environment(self) -> dict[str, str]:
        """This process's variables, with PYTHONPATH so that searches are replayed."""
        others = os.environ.get("PYTHONPATH", "")
        return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder), str(ROOT), others)))}

    @property
    def executed(self) -> list[Path]:
        """The folder of each probe that was begun, in order; a probe that was begun twice is there twice."""
        return [Path(line) for line in self._executed.read_text().splitlines()] if self._executed.exists() else []

    def hold(self) -> None:
        """Let no probe end until `release`."""
        self._hold.touch()

    def release(self) -> None:
        self._hold.unlink()
