"""What a search leaves that ended because it failed."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.result import TuningResult
from autotune.commands.search import search
from autotune.core import Measurement, Outcome
from autotune.core.errors import SearchFailed
from autotune.core.stop_reason import StopKind
from autotune.probe.order import TrainingOrder
from autotune.report.claim import claim_of, headline
from autotune.study.crashes import CRASHES_THAT_END
from autotune.study.plan import Progress, ProgressKind
from tests.conftest import RECORDED
from tests.recorded_host import RecordedHost


class FailingMachine(RecordedHost):
    """A host on whose machine each training crashes after the first two."""

    def probe(self, order: TrainingOrder) -> Measurement:
        probes = sum(other.kind == "probe" for other in self.orders)
        return super().probe(order) if probes <= 2 else Measurement(Outcome.CRASHED, "RuntimeError: no such kernel")


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a search that one crash ended which no setting explains."""
    monkeypatch.setattr("autotune.study.crashes.crashing_values", lambda trials: [])
    options: dict[str, Any] = {"sequence_length": 32, "device": "cpu", "no_history": True, "sampler": "random"}
    with pytest.raises(SearchFailed, match=f"The same crash came {CRASHES_THAT_END} times in a row"):
        search(
            "bert-mini",
            16,
            probes=partial(FailingMachine, RECORDED),
            watch=False,
            output_dir=str(tmp_path),
            study_name="failed",
            **options,
        )
    return tmp_path / "failed"


def test_a_search_that_failed_is_saved_without_a_final_headline(failed: Path) -> None:
    result = TuningResult.load(failed)
    assert (result.stop.kind, result.complete, result.finished) == (StopKind.FAILED, False, "")
    assert result.stop_reason.startswith(f"the same crash came {CRASHES_THAT_END} times in a row: ")
    assert headline(result).startswith(f"Interrupted after {len(result.trials)} trials: ")
    assert claim_of(result).advice == result.stop.advice
    assert "search again with --fresh" in result.stop.advice
    assert "Interrupted after" in (failed / "summary.md").read_text()
    saved = json.loads((failed / "result.json").read_text())
    assert (saved["stop"]["kind"], saved["complete"]) == ("failed", False)


def test_a_search_that_goes_on_is_not_called_complete_before_its_own_end(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sequence_length": 32, "device": "cpu", "no_history": True, "sampler": "random"}
    options |= {"probes": partial(RecordedHost, RECORDED), "output_dir": str(tmp_path), "study_name": "longer"}
    search("bert-mini", 16, n_trials=2, watch=False, **options)
    folder = tmp_path / "longer"
    assert TuningResult.load(folder).complete
    known: list[TuningResult] = []

    def watch(progress: Progress) -> None:
        if progress.kind is ProgressKind.TRIAL:
            known.append(TuningResult.load(folder))  # what a kill would leave

    search("bert-mini", 16, n_trials=3, watch=watch, **options)
    assert [(len(each.trials), each.stop.kind, each.complete) for each in known] == [(3, StopKind.KILLED, False)]
    assert TuningResult.load(folder).complete
