"""RecordedHost: a whole search without a process."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.commands import search
from autotune.commands.result import TuningResult
from autotune.core import Configuration, Outcome, read_json
from autotune.core.errors import NothingFits
from autotune.core.note import NoteKind
from autotune.probe.order import ANSWER, Order
from autotune.probe.process.answers import ask, read_answer
from autotune.report.evidence import measurement_lines
from tests.conftest import RECORDED
from tests.recorded_host import RecordedHost, RecordingHost, save_recording

BF16 = Configuration(16, 1, settings=(("precision", "bf16"),))


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


def test_what_was_not_recorded_is_answered_by_the_nearest(tmp_path: Path) -> None:
    host = RecordedHost(RECORDED)
    order = Order(kind="probe", folder=str(tmp_path), deadline_s=9.0, configuration=BF16)
    near = read_answer(order, host.run(order))
    twice = replace(order, configuration=Configuration(32, 1, settings=BF16.settings))
    far = read_answer(twice, host.run(twice))
    assert near.outcome is far.outcome is Outcome.COMPLETED
    assert far.samples_per_second == pytest.approx(near.samples_per_second)
    assert near.peak_bytes
    assert far.peak_bytes == pytest.approx(2 * near.peak_bytes, abs=1)


def test_a_recorded_peak_above_the_limit_is_out_of_memory(tmp_path: Path) -> None:
    order = Order(kind="probe", folder=str(tmp_path), deadline_s=9.0, configuration=BF16, allowed_bytes=1 << 20)
    assert read_answer(order, RecordedHost(RECORDED).run(order)).outcome is Outcome.OUT_OF_MEMORY
    with pytest.raises(NothingFits):
        searched(tmp_path, memory_limit="60MiB", headroom="1%", n_trials=3)


def test_every_rank_leaves_an_answer(tmp_path: Path) -> None:
    configuration = Configuration(4, 2, 2)
    order = Order(kind="probe", folder=str(tmp_path), deadline_s=9.0, configuration=configuration)
    measurement = read_answer(order, RecordedHost(RECORDED).run(order))
    assert measurement.data_parallel_size == 2
    assert measurement.outcome is Outcome.COMPLETED


@pytest.mark.nightly
def test_what_a_real_host_answered_is_saved_and_answered_again(tmp_path: Path) -> None:
    answers: list[tuple[Order, object]] = []
    place = str(tmp_path / "order")
    with RecordingHost(answers) as host:
        told = ask(host, Order(kind="capabilities", folder=place, deadline_s=300.0, request={"device": "cpu"}))
    assert [order.kind for order, _ in answers] == ["capabilities"]
    save_recording(answers, tmp_path / "recording.json")
    again = RecordedHost(tmp_path / "recording.json")
    assert ask(again, Order(kind="capabilities", folder=place, deadline_s=1.0, request={"device": "cpu"})) == told


def test_no_process_and_no_torch_is_needed(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "from autotune.commands import search; from tests.recorded_host import RecordedHost\n"
        f"search.search('bert-mini', 8, device='cpu', n_trials=2, output_dir={str(tmp_path)!r}, watch=False,\n"
        f"    no_history=True, probes=partial(RecordedHost, Path({str(RECORDED)!r})))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
