"""The parent's side: what becomes of a host that dies, of a parent that dies, and of answers on their way."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.core import Environment, Interval, InvalidRequest, Measurement, Outcome, read_json
from autotune.core.errors import ProbeHostFailed, StorageFailed, TimeIsOver
from autotune.core.request import tuning_request
from autotune.core.slot import Slot
from autotune.core.time_limit import TimeLimit
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe import ExitInfo, ProbeOptions, runner
from autotune.probe.order import CHILD_ANSWER, LOG, ORDER, Order
from autotune.probe.process import launcher
from autotune.probe.process.answers import ask, read_answer
from autotune.probe.process.host import SPAWN
from autotune.probe.process.launcher import ProbeHost, inherited
from autotune.probe.runner import LiveProbe
from tests.makers import warned
from tests.probe.probes import CALLERS, MIB, QUICK, configuration, make_order, measured
from tests.probe.process.conftest import OBJECTS
from tests.probe.processes import alive, becomes_true, bounded, marked, token_of, told

GONE_S = 10.0
"""Within this everything below a killed process has to be gone."""


@pytest.fixture
def probe(bad_host: ProbeHost, environment: Environment, tmp_path: Path) -> LiveProbe:
    """A LiveProbe of the tiny model of `misbehaviours`, which behaves itself."""
    return LiveProbe(
        bad_host,
        environment,
        CALLERS,
        {},
        allowed_bytes=500 * MIB,
        folder=lambda slot: tmp_path / f"{slot.number:04d}-{slot.round}",
        timings=(QUICK, QUICK),
    )


# Killed ---------------------------------------------------------------------------------------------------------

PARENT = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from autotune.core.environment import Environment
    from autotune.probe.process.launcher import ProbeHost
    from tests.probe.probes import make_order

    folder = Path(sys.argv[1])
    environment = Environment.from_dict(json.loads(sys.argv[2]))
    host = ProbeHost((folder / "objects").read_bytes())
    host.start()
    (folder / "host").write_text(str(host.pid))
    host.run(make_order(folder, environment, "everything", deadline_s=600.0))
    """
)


def test_a_killed_parent_leaves_nothing(environment: Environment, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    (tmp_path / "objects").write_bytes(OBJECTS)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), json.dumps(environment.to_dict())],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert becomes_true((tmp_path / "ready").exists, 120.0)
        host = int((tmp_path / "host").read_text())
        token, scratch = token_of(host), Path(psutil.Process(host).environ()["TMPDIR"])
        assert len(marked(token)) >= 3, "the host, the probe and its grandchild"
    finally:
        parent.kill()
        parent.wait()
    assert becomes_true(lambda: not marked(token), GONE_S)
    below = [told(tmp_path, name) for name in ("ready", "grandchild", "bare")]
    assert becomes_true(lambda: not any(map(alive, (host, *below))), GONE_S)
    assert becomes_true(lambda: not scratch.exists(), GONE_S)
    made = told(tmp_path, "shared")
    assert made
    assert not set(made) & set(os.listdir("/dev/shm"))


def test_a_command_that_closes_what_it_inherits_ends_with_its_parent(tmp_path: Path) -> None:
    """As `sudo` does."""
    closes = "import os, pathlib, sys, time; os.closerange(3, 100); pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", closes, str(tmp_path / "closed")]
    supervisor = [sys.executable, "-P", "-m", "autotune.probe.process.supervisor"]
    with (
        theirs,
        bounded(
            subprocess.Popen(
                [*supervisor, str(theirs.fileno()), str(tmp_path / "scratch"), *command],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
                pass_fds=[theirs.fileno()],
            )
        ) as process,
        ours,
    ):
        assert becomes_true((tmp_path / "closed").exists, 60.0)
        ours.close()
        assert process.wait(20) == 0


def killing(kill: Callable[[], None], when: Callable[[], bool], times: int) -> threading.Thread:
    """A thread that waits for something to become true, kills, waits until it is no longer so, and so on."""

    def body() -> None:
        for _ in range(times):
            if becomes_true(when, 60.0):
                kill()
                becomes_true(lambda: not when(), 10.0)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.mark.parametrize("victim", ["host", "child", "supervisor"])
@pytest.mark.nightly
def test_a_probe_that_something_else_kills_is_done_again(environment: Environment, tmp_path: Path, victim: str) -> None:
    with ProbeHost(OBJECTS) as host:
        host.start()

        def kill() -> None:
            below = psutil.Process(host.pid)
            process = {"host": below, "child": below.children()[-1:], "supervisor": below.parent()}[victim]
            for item in process if isinstance(process, list) else [process]:
                item.kill()

        running = lambda: bool(host.pid and alive(host.pid) and psutil.Process(host.pid).children())  # noqa: E731
        killer = killing(kill, running, 1)
        measurement = measured(host, make_order(tmp_path, environment))
        killer.join()
    assert measurement.outcome is Outcome.COMPLETED
    assert measurement.repeated_because == (ResultWarning(WarningKind.KILLED),)


STARTING = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from autotune.probe.process.launcher import ProbeHost

    host = ProbeHost()
    Path(sys.argv[1]).write_text(host._token)
    host.start()
    """
)


def starting(tmp_path: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A process that starts a host, and the host's token, before the host is ready."""
    (tmp_path / "temporary").mkdir()
    script, token = tmp_path / "parent.py", tmp_path / "token"
    script.write_text(STARTING)
    paths = {"PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(tmp_path / "temporary")}
    parent = subprocess.Popen([sys.executable, str(script), str(token)], env={**os.environ, **paths})
    assert becomes_true(lambda: token.exists() and len(token.read_text()) == 16, 60.0)
    return parent, token.read_text()


def test_a_parent_killed_while_its_host_imports_leaves_nothing(tmp_path: Path) -> None:
    parent, token = starting(tmp_path)
    try:
        importing = lambda: any("libtorch" in maps_of(pid) for pid in marked(token))  # noqa: E731
        assert becomes_true(importing, 120.0)
        assert list((tmp_path / "temporary").iterdir())
    finally:
        parent.kill()
        parent.wait()
    assert becomes_true(lambda: not marked(token) and not list((tmp_path / "temporary").iterdir()), 2.0)


def maps_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def test_a_host_killed_while_it_imports_is_said_to_be_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, warnings\nwarnings.warn('moved elsewhere', FutureWarning)\nos.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ProbeHost() as host, pytest.raises(ProbeHostFailed) as met:
        host.start()
    assert "SIGKILL (signal 9), perhaps by the kernel's out-of-memory killer" in met.value.message
    assert "Warning" not in str(met.value)


def test_a_host_that_hangs_is_ended_like_a_dead_one(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 0.5)
    monkeypatch.setattr(launcher, "CLOSE_S", 0.5)
    monkeypatch.setattr(launcher, "REPEATS", 0)
    monkeypatch.setenv(SPAWN, "1")  # it starts sooner
    with ProbeHost() as host:
        host.start()
        first = host.pid
        assert first is not None
        psutil.Process(first).suspend()
        with pytest.raises(ProbeHostFailed, match="did not answer"):
            measured(host, make_order(tmp_path, environment, deadline_s=0.5))
    assert not alive(first)


HUNG = ExitInfo("host hung", 80.0)
ENDED = ExitInfo("host ended", 1.0, [-signal.SIGTERM])
CRASHED = ExitInfo("host ended", 1.0, [7], output="no library")
OUT_OF_MEMORY = ExitInfo("host ended", 1.0, [-signal.SIGKILL], kernel_oom_kills=1)
TERMINATED = ExitInfo("exited", 1.0, [-signal.SIGTERM])


@pytest.mark.parametrize(
    ("infos", "end"),
    [
        ([HUNG, HUNG], "The process that starts probes did not answer, twice."),
        ([ENDED, ENDED, ENDED], "The process that starts probes was ended by SIGTERM."),
        ([HUNG, ENDED, ENDED], "The process that starts probes was ended by SIGTERM."),
        ([TERMINATED, TERMINATED, TERMINATED], Outcome.CRASHED),
        ([HUNG, CRASHED], Outcome.CRASHED),
        ([OUT_OF_MEMORY], Outcome.OUT_OF_MEMORY),
    ],
)
def test_what_ends_or_stops_a_host_from_outside_is_repeated_and_never_booked_on_the_configuration(
    infos: list[ExitInfo],
    end: str | Outcome,
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [*infos]
    monkeypatch.setattr(ProbeHost, "_run", lambda host, order: left.pop(0))
    if isinstance(end, Outcome):
        assert measured(ProbeHost(), make_order(tmp_path, environment)).outcome is end
    else:
        with pytest.raises(ProbeHostFailed, match=end) as met:
            measured(ProbeHost(), make_order(tmp_path, environment))
        assert "resume" in met.value.advice
    assert not left


def test_an_interrupted_order_takes_its_host_along(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPAWN, "1")  # it starts sooner
    with ProbeHost() as host:
        host.start()
        token, below = token_of(host.pid or 0), psutil.Process(host.pid)

        def interrupted(seconds: float) -> None:
            assert becomes_true(lambda: bool(below.children()), 60.0)
            raise KeyboardInterrupt

        monkeypatch.setattr(host, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            host.run(make_order(tmp_path, environment, "hang"))
        assert not marked(token), "its late answer would be taken for the next order's"
        monkeypatch.undo()


# Orders and answers ---------------------------------------------------------------------------------------------


def test_an_order_survives_its_way_to_the_child(environment: Environment, tmp_path: Path) -> None:
    order = make_order(tmp_path, environment, "hang", asked=configuration(2, 3), allowed_bytes=MIB, number=7)
    on_disk = json.loads(json.dumps(order.to_dict()))
    assert "folder" not in on_disk, "a report folder may move"
    assert Order.from_dict(on_disk, tmp_path) == order


def test_an_answer_after_the_deadline_does_not_count(environment: Environment, tmp_path: Path) -> None:
    order = make_order(tmp_path, environment, asked=configuration(2, 3), allowed_bytes=MIB, deadline_s=3.0)
    (tmp_path / CHILD_ANSWER).write_text(
        '{"outcome": "crashed", "reason": "too late", "steps": [], "observed_warnings": []}'
    )
    assert read_answer(order, ExitInfo("exited", 1.0, [0])).reason == "too late"
    late = read_answer(order, ExitInfo("timed out", 3.1, [None]))
    assert (late.outcome, late.reason, late.probe_seconds) == (Outcome.TIMED_OUT, "not done after 3 s", 3.1)
    assert (late.accumulation_steps, late.accumulation_steps_run, late.allowed_bytes) == (3, 3, MIB)


def test_the_kernels_counter_makes_a_killed_worker_an_out_of_memory(environment: Environment, tmp_path: Path) -> None:
    order = make_order(tmp_path, environment)
    (tmp_path / CHILD_ANSWER).write_text(
        '{"outcome": "crashed", "reason": "worker exited", "steps": [], "observed_warnings": []}'
    )
    (tmp_path / LOG).write_text("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. \n")
    assert read_answer(order, ExitInfo("exited", 1.0, [0])).outcome is Outcome.CRASHED
    witnessed = read_answer(order, ExitInfo("exited", 1.0, [0], kernel_oom_kills=1))
    assert (witnessed.outcome, witnessed.where) == (Outcome.OUT_OF_MEMORY, "data")


def test_a_childs_own_error_is_raised_with_its_advice(host: ProbeHost, tmp_path: Path) -> None:
    request = replace(tuning_request("bert-mini", 4), model="no-such-model-anywhere")
    order = Order(
        kind="prepare",
        folder=str(tmp_path),
        deadline_s=60.0,
        request={"request": request.to_dict(), "cache": str(tmp_path / "cache")},
    )
    with pytest.raises(InvalidRequest) as caught:
        ask(host, order)
    assert "no-such-model-anywhere" in caught.value.message
    assert caught.value.advice


def test_reading_that_dies_shows_the_end_of_its_output(bad_host: ProbeHost, tmp_path: Path) -> None:
    request = {"request": {"model": "bert-mini"}, "cache": str(tmp_path)}
    with pytest.raises(ProbeHostFailed) as caught:
        ask(bad_host, Order(kind="prepare", folder=str(tmp_path), deadline_s=60.0, request=request))
    assert caught.value.message.startswith("Reading the model and data failed: ended with exit code 1: TypeError")
    assert "Traceback" in caught.value.advice


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(
    host: ProbeHost, environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(StorageFailed, match="cannot be written"):
        host.run(make_order(tmp_path / "a-file" / "0001", environment))
    assert not list(tmp_path.glob("**/.*")), "nothing is written half"


def test_what_reaches_a_probe_of_the_callers_variables() -> None:
    kept = {"HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RANKED_BY", "RAY_ADDRESS"}
    precision = {"ACCELERATE_MIXED_PRECISION", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"}
    rank = {"ACCELERATE_USE_FSDP", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    secret = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    assert inherited(dict.fromkeys(kept | precision | rank | secret, "1")).keys() - {"HF_HUB_DISABLE_TELEMETRY"} == kept


# LiveProbe ------------------------------------------------------------------------------------------------------


def test_a_search_probe_runs_three_micro_steps_and_a_confirmation_all(probe: LiveProbe) -> None:
    asked = configuration(2, 6)
    search = probe(asked, ProbeOptions(Slot(1), 60.0))
    confirmed = probe(asked, ProbeOptions(Slot(1, 1), 60.0))
    for measurement, run in ((search, 3), (confirmed, 6)):
        assert measurement.outcome is Outcome.COMPLETED
        assert (measurement.accumulation_steps, measurement.accumulation_steps_run) == (6, run)
        assert {step.samples for step in measurement.steps} == {2 * run}
        assert {step.samples for step in measurement.composed_steps} == {12}
        assert all(step.middle_s > 0 for step in measurement.steps)


def test_a_later_round_runs_three_micro_steps_if_they_agree_with_whole_ones(probe: LiveProbe) -> None:
    def measured(speed: Interval | None, losses: int = 0) -> Measurement:
        return probe(configuration(2, 6), ProbeOptions(Slot(1, 2), 60.0, whole_speed=speed, losses=losses))

    known = measured(None).samples_per_second
    assert known is not None
    agreeing = measured(Interval(known, known / 100, known * 100))
    assert (agreeing.accumulation_steps_run, agreeing.losses, agreeing.whole_because) == (3, (), "")
    other = known / 1000
    differing = measured(Interval(other, other, other))
    assert differing.accumulation_steps_run == 6
    assert len(differing.losses) >= 4
    assert "composed of 3 micro-steps took" in differing.whole_because


def test_where_workers_do_not_keep_up_every_micro_step_is_run(
    probe: LiveProbe, environment: Environment, tmp_path: Path
) -> None:
    slow = replace(CALLERS, name="slow data")
    asked = configuration(2, 4, workers=1)
    patient = LiveProbe(**{**vars(probe), "workload": slow})
    with pytest.MonkeyPatch.context() as patch:
        # The tiny model computes for a millisecond: one worker cannot have six batches ready in that time.
        patch.setattr(runner, "READY_SHARE", 0.0)
        measurement = patient(asked, ProbeOptions(Slot(1), 60.0))
    assert measurement.outcome is Outcome.COMPLETED
    assert measurement.accumulation_steps_run == 4
    assert read_json(tmp_path / "0001-0" / ORDER)["accumulation_steps_run"] == 4


def test_a_foreign_process_on_the_device_is_a_warning(probe: LiveProbe) -> None:
    quiet = LiveProbe(**{**vars(probe), "device_used": lambda: (1000, [])})
    assert quiet(configuration(), ProbeOptions(Slot(1), 60.0)).observed_warnings == ()
    answers = iter([(1000, []), (1000, []), (1000, ["blender (4711)"])])
    shared = LiveProbe(**{**vars(probe), "device_used": lambda: next(answers)})
    measurement = shared(configuration(), ProbeOptions(Slot(2), 60.0))
    assert measurement.observed_warnings == warned("blender (4711)")


def test_the_next_probe_waits_until_the_memory_is_back(probe: LiveProbe) -> None:
    used = iter([1000 * MIB, 9000 * MIB, 9000 * MIB, 5000 * MIB, 1010 * MIB, 1010 * MIB])
    asked: list[int] = []

    def device_used() -> tuple[int, list[str]]:
        asked.append(next(used))
        return asked[-1], []

    waiting = LiveProbe(**{**vars(probe), "device_used": device_used})
    assert waiting(configuration(), ProbeOptions(Slot(1), 60.0)).outcome is Outcome.COMPLETED
    assert asked[-1] == 1010 * MIB


# A limited time -------------------------------------------------------------------------------------------------


def test_no_order_outlasts_the_command_s_time(host: ProbeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(kind="capabilities", folder=str(tmp_path / "order"), deadline_s=300.0, request={"device": "cpu"})
    monkeypatch.setattr(host, "time_limit", TimeLimit(1.0, time.monotonic() - 0.9))
    begun = time.monotonic()
    with pytest.raises(TimeIsOver, match="--timeout"):
        ask(host, order)
    assert time.monotonic() - begun < 10
    with ProbeHost() as slow:
        slow.time_limit = TimeLimit(0.1)
        with pytest.raises(TimeIsOver):
            slow.start()
        assert slow.pid is None
