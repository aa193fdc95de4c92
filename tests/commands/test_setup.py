"""What a search is made of, before it runs."""

from pathlib import Path
from typing import Any

import pytest

from autotune.commands.setup import SearchCall, open_setup
from autotune.core.errors import StudyInUse
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.warning import ResultWarning, WarningKind
from autotune.executors import Executor
from autotune.probe.queries import read_environment, read_workload
from autotune.study.history import Remembered
from autotune.study.store import locked
from autotune.workload.model.pickling import Payload
from tests.conftest import RECORDED
from tests.makers import GIB, trial
from tests.recorded_host import RecordedHost

SENT = Note(NoteKind.SENT, detail="a reason")
UNUSED = ResultWarning(WarningKind.UNUSED_GPU, detail="a reason")


def call_of(folder: Path, host: RecordedHost, **changed: Any) -> SearchCall:
    request = tuning_request("bert-mini", 16, sequence_length=32, device="cpu", output_dir=str(folder), study_name="x")
    payload = Payload("bert-mini", b"", (SENT,), warnings=(UNUSED,), trains_on=True)
    parts: dict[str, Any] = {"request": request, "payload": payload, "source": "", "host": host, "card": None}
    return SearchCall(**{**parts, "executors": (), "fresh": False, "fingerprint": "", **changed})


def test_this_process_is_one_executor_and_what_was_sent_is_noted(tmp_path: Path) -> None:
    with RecordedHost(RECORDED) as host, open_setup(call_of(tmp_path, host), watch=False) as setup:
        (executor,) = setup.executors
        known = setup.unmeasured
        assert (executor.name, executor.host) == ("", host)
        assert (executor.environment, executor.workload) == (known.environment, known.workload)
        assert (known.notes[-1], known.study_warnings) == (SENT, (UNUSED,))
        assert setup.study.folder == tmp_path / "x"
        assert setup.study.plan.keep_numerics, "the training goes on with the answer"
        with pytest.raises(StudyInUse), locked(tmp_path / "x"):
            pass


def test_several_executors_have_the_memory_of_the_smallest_and_ranks_take_none_of_another_machine(
    tmp_path: Path,
) -> None:
    with RecordedHost(RECORDED) as host:
        call = call_of(tmp_path, host)
        environment, _ = read_environment(host, call.request, None)
        workload = read_workload(host, call.request)
        executors = [Executor(f"node:{free}", host, environment, workload) for free in (3, 2)]  # type: ignore[arg-type]
        for executor, free in zip(executors, (3, 2), strict=True):
            executor.environment = type(environment)(**{**vars(environment), "free_memory_bytes": free * GIB})
        with open_setup(call_of(tmp_path, host, executors=executors), watch=False) as setup:
            assert setup.executors == executors
            assert setup.unmeasured.environment.free_memory_bytes == 2 * GIB
            assert setup.unmeasured.environment.device_count == environment.device_count


@pytest.mark.parametrize(("fresh", "adopted"), [(False, 1), (True, 0)])
def test_a_fresh_search_uses_no_trials_of_an_earlier_one(
    fresh: bool, adopted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.commands.setup.recall", lambda *_: Remembered((trial(0),)))
    with RecordedHost(RECORDED) as host, open_setup(call_of(tmp_path, host, fresh=fresh), watch=False) as setup:
        assert len(setup.past.trials) == adopted
