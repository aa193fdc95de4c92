"""The recipes for SLURM: shell without a fault, and one on a real SLURM of one node with two GPUs that are none."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "recipes" / "slurm"
SCRIPTS = sorted(SLURM.glob("*.sh"))
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONFIGURATION = """\
ClusterName=recipes
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
KillWait=30
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_bash_reads_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_shellcheck_finds_nothing(script: Path) -> None:
    linter = shutil.which("shellcheck") or pytest.skip("shellcheck is not installed")
    done = subprocess.run([linter, script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(happened: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch and the others reach a SLURM of this test alone."""
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=PATH)]:
        pytest.skip(f"SLURM is not installed: no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    # munged refuses a socket below a folder that others may write to or not enter.
    folder = Path("/run") / f"recipes-{os.getpid()}"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host, folder=folder, cores=os.cpu_count(), controller_port=free_port(), node_port=free_port()
        )
    )
    devices = [folder / f"gpu{number}" for number in range(2)]
    for device in devices:
        subprocess.run(["mknod", "-m", "666", device, "c", "1", "3"], check=True, timeout=300)
    (folder / "gres.conf").write_text("AutoDetect=off\n" + "".join(f"Name=gpu File={device}\n" for device in devices))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))},
        "PATH": PATH,
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PYTHONPATH": str(ROOT),
    }
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c", "-N", host]):
            with (folder / f"{command[0]}.out").open("w") as output:
                daemons.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
            if command is munged:
                wait_for((folder / "munge.socket").exists, 10, lambda: (folder / "munged.out").read_text())

        def ready() -> bool:
            done = subprocess.run(
                ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, timeout=300
            )
            return done.stdout.strip() == "idle"

        wait_for(ready, 60, lambda: "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log")))
        yield environment
    finally:
        if daemons:
            subprocess.run(["scancel", "--user", "root"], env=environment, timeout=30)
            time.sleep(2)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


WORKLOAD = ["--device", "cpu", "--global-batch-size", "8", "--sequence-length", "32", "--n-trials", "6"]
WORKLOAD += ["--search-space", "quick", "--study-name", "job", "--no-history"]


@dataclass(frozen=True)
class Jobs:
    """Jobs of one recipe in this folder; more: further options of its search."""

    environment: dict[str, str]
    folder: Path
    script: str
    options: tuple[str, ...]
    more: tuple[str, ...] = ()

    def run(self, *command: str) -> str:
        own = self.environment | {"MODEL": "bert-mini"}
        done = subprocess.run(command, env=own, cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self) -> str:
        options = ("--parsable", *self.options, f"--output={self.folder / 'log.txt'}")
        return self.run("sbatch", *options, str(SLURM / f"{self.script}.sh"), *WORKLOAD, *self.more).strip()

    def state(self, job: str) -> str:
        match = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job))
        return match[1] if match else ""

    def measured(self) -> dict[str, float]:
        """When each trial was measured."""
        paths = (self.folder / "reports" / "job" / "probes").glob("[0-9]*/measurement.json")
        return {path.parent.name: path.stat().st_mtime for path in paths}

    def text(self) -> str:
        log = self.folder / "log.txt"
        return log.read_text() if log.exists() else "no output"

    def wait_for(self, happened: Callable[[], object], seconds: float) -> None:
        wait_for(happened, seconds, self.text)

    def wait_for_end(self, job: str, seconds: float = 600) -> str:
        self.wait_for(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), seconds)
        return self.state(job)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_requeued_job_continues_its_search(cluster: dict[str, str], tmp_path: Path) -> None:
    """Requeued in the middle, then a step that gets SIGTERM, then to the end: no trial is measured twice."""
    jobs = Jobs(cluster, tmp_path, "one_search_a_job", ("--cpus-per-task=1",))
    job = jobs.submit()
    jobs.wait_for(lambda: len(jobs.measured()) >= 2, 300)
    assert "gpu:1" in jobs.run("scontrol", "show", "job", "-d", job)
    jobs.run("scontrol", "requeue", job)
    first = jobs.measured()
    # SLURM waits for two minutes before it starts a requeued job again; not here.
    jobs.wait_for(lambda: jobs.state(job) == "PENDING", 90)
    jobs.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    jobs.wait_for(lambda: jobs.text().count("resuming with") == 1, 300)
    jobs.wait_for(lambda: len(jobs.measured()) > len(first), 300)

    jobs.run("scancel", "--signal=TERM", f"{job}.0")
    jobs.wait_for_end(job, 120)
    second = jobs.measured()
    assert (tmp_path / "reports" / "job" / "report.html").exists(), "SIGTERM leaves time for the report"

    assert jobs.wait_for_end(jobs.submit()) == "COMPLETED"
    assert first.items() <= second.items() <= jobs.measured().items()
    assert jobs.text().count("resuming with") == 2


def of_ray(job: str) -> list[str]:
    """Command lines of what still runs of a job's Ray cluster."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if f"/tmp/ray-{job}/" in command]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("script", ["one_node_all_gpus", "many_nodes_ray"])
def test_a_cancelled_job_on_several_devices_is_continued_by_the_next(
    cluster: dict[str, str], tmp_path: Path, script: str
) -> None:
    if script == "many_nodes_ray":
        pytest.importorskip("ray")
    jobs = Jobs(cluster, tmp_path, script, ("--nodes=1", "--gres=gpu:2"), ("--devices", "2"))
    job = jobs.submit()
    jobs.wait_for(lambda: len(jobs.measured()) >= 1, 300)
    jobs.run("scancel", job)
    assert jobs.wait_for_end(job, 120) == "CANCELLED"
    first = jobs.measured()
    assert not [*tmp_path.glob(".ray-token-*")]
    assert not of_ray(job)
    assert not Path(f"/tmp/ray-{job}").exists()

    assert jobs.wait_for_end(jobs.submit()) == "COMPLETED"
    assert first.items() <= jobs.measured().items()
    assert "resuming with" in jobs.text()
    result = json.loads((tmp_path / "reports" / "job" / "result.json").read_text())
    assert len(result["devices"]) == 2
    assert not [*tmp_path.glob(".ray-token-*")]
    assert not of_ray(str(int(job) + 1))
