"""RecordedHost: a whole search without a process."""

from pathlib import Path

import pytest

from autotune.commands import search
from autotune.commands.result import TuningResult
from autotune.core import read_json
from autotune.core.note import NoteKind
from autotune.probe.order import ANSWER
from autotune.report.evidence import measurement_lines
from tests.conftest import RECORDED
from tests.recorded_host import RecordedHost


def searched(
    folder: Path, global_batch_size: int = 16, slower: float = 1.0, **options: object
) -> tuple[TuningResult, list[RecordedHost]]:
    hosts: list[RecordedHost] = []

    def probes(objects: bytes) -> RecordedHost:
        hosts.append(RecordedHost(RECORDED, objects, slower))
        return hosts[-1]

    known = {"sequence_length": 32, "device": "cpu", "output_dir": str(folder), "no_history": True, "watch": False}
    return search.search("bert-mini", global_batch_size, probes=probes, **{**known, **options}), hosts


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuningResult, list[RecordedHost]]:
    """A search that knows no rates from another test, and its hosts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return searched(tmp_path_factory.mktemp("reports"), n_trials=4)


def test_a_search_goes_through_all_its_kinds_of_orders(first: tuple[TuningResult, list[RecordedHost]]) -> None:
    result, hosts = first
    assert {order.kind for host in hosts for order in host.orders} >= {
        *("capabilities", "prepare", "rates", "trace", "probe", "sanity_check")
    }
    assert len(result.trials) == 4
    assert result.best.confirmed
    assert result.numerics
    assert result.sanity_check
    assert not result.notes or not any(note.kind is NoteKind.NO_ESTIMATE for note in result.notes)
    assert result.estimated_peaks
    assert result.folder is not None
    assert (result.folder / "report.html").exists()


def test_a_measurement_has_its_time_as_soon_as_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is killed then compares it with others as one that is not."""
    monkeypatch.setattr("autotune.study.measure.keep", lambda *_: None)
    monkeypatch.setattr("autotune.study.ledger.keep", lambda *_: None)
    result, _ = searched(tmp_path, n_trials=2)
    assert result.folder is not None
    files = [*(result.folder / "probes").rglob(ANSWER)]
    assert len(files) >= 2
    assert all(read_json(path)["started_s"] > 0 for path in files)


def test_the_same_search_gives_the_same_answer(first: tuple[TuningResult, list[RecordedHost]], tmp_path: Path) -> None:
    result, _ = first
    again, _ = searched(tmp_path, n_trials=4)
    assert [trial.configuration for trial in result.trials] == [trial.configuration for trial in again.trials]
    assert result.speedup == again.speedup


@pytest.mark.parametrize(("slower", "run"), [pytest.param(0.1, 16, marks=pytest.mark.nightly), (30.0, 3)])
def test_rounds_of_long_steps_run_few_micro_steps_after_the_first(tmp_path: Path, slower: float, run: int) -> None:
    only = {"micro_batch_size": [2, 4, 8], "checkpointing": ["none"], "precision": ["fp32", "bf16"]}
    more = {"args": {"per_device_train_batch_size": 4}, "n_trials": 3, "only": only, "confirmation_rounds": 4}
    more["training_steps"] = 100_000  # long enough for a proof to be worth its time
    result, hosts = searched(tmp_path, 64, slower, **more)
    baseline = result.trials[0]
    assert result.best.confirmed
    first, *others = (measured.accumulation_steps_run for measured in baseline.confirmations)
    assert (first, {*others}) == (16, {run})
    assert result.numerics
    assert all(result.numerics.is_checked(trial.number) for trial in result.trials if trial.confirmed)
    rounds = [order for order in hosts[0].orders if order.kind == "probe" and order.confirmation]
    assert {order.accumulation_steps_run for order in rounds if order.number == 0} == {16, run}
    evidence = " ".join(measurement_lines(baseline))
    assert ("rounds after the first ran few micro-steps" in evidence) == (run == 3)
