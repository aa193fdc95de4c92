"""Children that misbehave, as real processes: each end is the right outcome, in time, and nothing is left behind."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.core import Environment, Measurement, Outcome
from autotune.core.errors import ProbeHostFailed
from autotune.probe.order import CHILD_ANSWER, LOG
from autotune.probe.process.host import LOG_HEAD, LOG_TAIL, SPAWN, _reasons_not_to_fork, why_not_fork
from autotune.probe.process.launcher import ProbeHost
from tests.probe.probes import configuration, make_order, measured
from tests.probe.processes import alive, told, unchanged

CLEARING_S = 6.0
"""How much longer than its deadline a probe may take until its measurement is here."""

Run = Callable[..., Measurement]


@pytest.fixture
def run(bad_host: ProbeHost, environment: Environment, tmp_path: Path) -> Iterator[Run]:
    """`run("segfault")`: the measurement of a child that does so; afterwards nothing of it may be left."""

    def run(behaviour: str, deadline_s: float = 60.0, **fields: object) -> Measurement:
        begun = time.monotonic()
        measurement = measured(bad_host, make_order(tmp_path, environment, behaviour, deadline_s=deadline_s, **fields))
        assert time.monotonic() - begun < deadline_s + CLEARING_S
        return measurement

    with unchanged(bad_host):
        yield run
    assert len(os.listdir(f"/proc/{bad_host.pid}/task")) == 1
    assert bad_host._output_end() == ""


# It hangs -------------------------------------------------------------------------------------------------------


def test_a_child_that_does_not_end_is_ended_at_its_deadline(run: Run) -> None:
    measurement = run("hang deaf", deadline_s=1.5)
    assert measurement.outcome is Outcome.TIMED_OUT
    assert measurement.reason == "not done after 2 s, while the Trainer and its data loader were built"
    assert measurement.probe_seconds >= 1.5


def test_a_loader_worker_that_hangs_is_a_probe_that_hangs(run: Run) -> None:
    assert run("worker hangs", deadline_s=1.5, asked=configuration(workers=1)).outcome is Outcome.TIMED_OUT


# It dies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("segfault", "ended by SIGSEGV"),
        ("be killed", "ended by SIGKILL (signal 9), perhaps by the kernel's out-of-memory killer"),
        ("leave with 0", "ended without an answer, claiming success"),
        ("exit politely", "ended with exit code 1: SystemExit: 0"),
    ],
)
def test_a_child_that_dies_without_a_word_crashed(run: Run, behaviour: str, reason: str) -> None:
    measurement = run(behaviour)
    assert (measurement.outcome, measurement.reason) == (Outcome.CRASHED, reason)
    assert measurement.log_tail.startswith("probe 0 started\n")
    assert not measurement.steps


@pytest.mark.parametrize("behaviour", ["claim success", "claim half", "claim an unknown end"])
def test_a_child_that_claims_success_without_a_step_crashed(run: Run, behaviour: str) -> None:
    measurement = run(behaviour)
    assert measurement.outcome is Outcome.CRASHED
    assert "claiming success" in measurement.reason


def test_an_answer_of_an_earlier_probe_is_not_taken_for_this_ones(run: Run, tmp_path: Path) -> None:
    good = run("")
    assert good.outcome is Outcome.COMPLETED
    (tmp_path / CHILD_ANSWER).write_text(json.dumps(good.to_dict()))
    assert run("segfault").outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    ("behaviour", "outcome", "said"),
    [
        ("worker killed", Outcome.CRASHED, "killed by signal: Killed"),
        ("worker bus error", Outcome.OUT_OF_MEMORY, "killed by signal: Bus error"),
    ],
)
def test_a_loader_worker_that_dies_is_met_in_the_data(run: Run, behaviour: str, outcome: Outcome, said: str) -> None:
    measurement = run(behaviour, asked=configuration(workers=1))
    assert (measurement.outcome, measurement.where) == (outcome, "data")
    assert said in measurement.log_tail


# It raises ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["build", "forward", "backward", "data"])
def test_an_out_of_memory_says_where_it_was_met(run: Run, where: str) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    measurement = run(f"raise in {where}", variables={"BEHAVIOUR_TEXT": text})
    assert (measurement.outcome, measurement.where) == (Outcome.OUT_OF_MEMORY, where)
    assert measurement.refused_bytes == 2**31
    assert measurement.held_bytes is not None
    assert measurement.fits > 0


def test_memory_that_a_loader_worker_lacks_is_met_in_the_data(run: Run) -> None:
    for workers in (0, 1):
        measurement = run("memory error in data", asked=configuration(workers=workers))
        assert (measurement.outcome, measurement.where) == (Outcome.OUT_OF_MEMORY, "data")


def test_a_crash_comes_with_its_traceback(run: Run, tmp_path: Path) -> None:
    measurement = run("raise in forward", variables={"BEHAVIOUR_TEXT": "the model is not amused"})
    assert (measurement.outcome, measurement.where) == (Outcome.CRASHED, "forward")
    assert measurement.reason == "RuntimeError: the model is not amused"
    assert "Traceback (most recent call last)" in measurement.log_tail
    assert "misbehaviours.py" in measurement.log_tail
    assert "Traceback (most recent call last)" in (tmp_path / LOG).read_text()


# It writes too much ---------------------------------------------------------------------------------------------


def test_a_flood_of_output_neither_fills_the_disk_nor_changes_the_outcome(run: Run, tmp_path: Path) -> None:
    measurement = run("flood")
    assert measurement.outcome is Outcome.COMPLETED
    assert told(tmp_path, "flooded") >= 300_000_000
    log = (tmp_path / LOG).read_bytes()
    assert LOG_HEAD < len(log) < LOG_HEAD + 2 * LOG_TAIL
    assert log.startswith(b"probe 0 started\n")
    assert b" bytes left out ..." in log


# It leaves something behind (the fixture looks for processes and temporary folders after every test) ---------------


def test_grandchildren_in_sessions_of_their_own_are_gone_afterwards(run: Run, tmp_path: Path) -> None:
    assert run("grandchildren").outcome is Outcome.COMPLETED
    for name in ("grandchild", "bare"):
        assert not alive(told(tmp_path, name))


def test_shared_memory_and_temporary_files_of_a_killed_child_are_removed(run: Run, tmp_path: Path) -> None:
    assert run("share memory, be killed").outcome is Outcome.CRASHED
    made = told(tmp_path, "shared")
    assert len(made) == 3, "a block, a semaphore and a tensor"
    assert not set(made) & set(os.listdir("/dev/shm"))
    assert not Path(told(tmp_path, "temporary")).exists()


# What a child is ------------------------------------------------------------------------------------------------


def test_a_child_is_a_session_of_its_own_in_the_callers_environment_less_what_changes_a_training(
    run: Run, tmp_path: Path
) -> None:
    measurement = run("facts", asked=configuration(precision="fp32"))
    assert (measurement.outcome, measurement.settings["precision"]) == (Outcome.COMPLETED, "fp32")
    facts = told(tmp_path, "facts")
    assert facts["session"]
    assert facts["oom_score_adj"] == "1000"
    assert facts["kept"] == "kept"
    assert facts["folder"] == os.getcwd()
    assert facts["path"] == [path or os.getcwd() for path in sys.path]
    assert facts["temporary"] != tempfile.gettempdir()
    assert facts["stdin"] == ""
    assert [name.partition(":")[0] for name in facts["open_files"]] == ["/dev/null", *[str(tmp_path / LOG)] * 2]
    assert facts["sockets"] == [], "the host's own"
    assert facts["scrubbed"] == []
    assert facts["matmul_precision"] == "highest"
    assert facts["is_telemetry_off"]
    script = (
        "import json, torch, numpy, threadpoolctl\n"
        "print(json.dumps([torch.get_num_threads(), [one['num_threads'] for one in threadpoolctl.threadpool_info()]]))"
    )
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    threads, blas = json.loads(plain.stdout)
    assert (facts["threads"], max(facts["blas_threads"])) == (threads, max(blas)), "as many as any process"


# The host itself ------------------------------------------------------------------------------------------------


def test_a_host_with_a_second_thread_refuses_to_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if 'autotune.probe.process.host' in sys.orig_argv:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(SPAWN, "1")  # it starts sooner
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with ProbeHost() as host, pytest.raises(ProbeHostFailed, match="threads") as refused:
        host.start()
    assert f"{SPAWN}=" in refused.value.advice
    assert host.pid is None
    assert not list(temporary.iterdir())


def test_a_host_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this library is broken on purpose')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ProbeHost() as host, pytest.raises(ProbeHostFailed, match="this library is broken on purpose"):
        host.start()


def test_a_host_leaves_libraries_that_wake_cuda_unopened(bad_host: ProbeHost) -> None:
    mapped = Path(f"/proc/{bad_host.pid}/maps").read_text()
    assert "libbitsandbytes" not in mapped
    assert "/torchao/" not in mapped


def test_what_was_taken_out_of_a_library_opened_later_is_fetched_when_it_is_used() -> None:
    script = (
        "import sys\nfrom autotune.probe.process import lazy_import\n"
        "lazy_import.open_later('wsgiref')\n"
        "from wsgiref.headers import Headers\nfrom wsgiref.util import request_uri\n"
        "assert not isinstance(1, Headers) and 'socketserver' not in sys.modules\n"
        "lazy_import.forget_opened_later()\n"
        "import wsgiref.headers\n"
        "assert isinstance(wsgiref.headers.Headers([]), Headers) and Headers([('a', 'b')])['a'] == 'b'\n"
        "assert issubclass(wsgiref.headers.Headers, Headers)\n"
        "assert request_uri({'wsgi.url_scheme': 'http', 'HTTP_HOST': 'here'}) == 'http://here/'\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=300
    )


# Whether to fork at all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initialized", "files", "said"),
    [
        (False, ["/dev/null", "/dev/nvidiactl", "/dev/nvidia0"], []),  # as NVML opens them
        (False, ["/dev/null", "/dev/nvidia-uvm", "/dev/nvidiactl"], ["CUDA", "/dev/nvidia-uvm, /dev/nvidiactl"]),
        (True, [], ["CUDA"]),
    ],
)
def test_a_cuda_that_anyone_woke_is_told_with_the_devices_that_are_open(
    initialized: bool, files: list[str], said: list[str]
) -> None:
    reason = why_not_fork(initialized, files, [])
    assert bool(reason) == bool(said)
    assert all(words in reason for words in said)


def test_a_real_thread_is_a_reason() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    try:
        assert thread.native_id is not None
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text("background")
        assert "background" in _reasons_not_to_fork()["refused"]
    finally:
        stop.set()
        thread.join()
