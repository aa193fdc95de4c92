"""What would fail on this machine, and why, in a minute and on two screens.

python tests/gpu/preflight.py [--seconds 90] [--json FILE] [--line NAME]

Each line is a process of its own with a deadline: one that crashes or hangs costs that line alone, and what it said before is
kept. Verdicts follow, one for each problem; without any the exit code is 0, else 1. DEVICE=cpu: all that a CPU can do.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ON_CUDA = os.environ.get("DEVICE", "cuda") != "cpu"
MOST = 320
"""Characters of a line: all of them together are to be read at a glance, and to pass where output is cut."""

NAMED = (
    *("torch", "triton", "transformers", "accelerate", "peft", "datasets", "pyarrow", "numpy", "huggingface-hub"),
    *("bitsandbytes", "liger-kernel", "optuna", "nvidia-ml-py"),
)
"""Distributions whose versions are shown; all of them are in the JSON file."""

WITHOUT = {"bitsandbytes"}
"""Those that a search can do without; they have a line of their own."""

SETTLED = 0.01
"""Share by which a second's rate may differ from the last ones' mean and count as settled."""

HOST = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Variables with which the process that starts probes imports its libraries, so that they start no thread."""

CONTEXT = """
import sys, time, torch
begun = time.monotonic()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
seconds = time.monotonic() - begun
free, total = torch.cuda.mem_get_info()
try:
    keys = sorted(torch.cuda.memory._snapshot().get("allocator_settings", {}))
except RuntimeError as error:
    keys = str(error).splitlines()[0]
import json
print(json.dumps({"seconds": seconds, "used": total - free, "total": total, "keys": keys}), flush=True)
sys.stdin.read()
"""
"""Makes a context and keeps it until its standard input ends."""


@dataclass
class Found:
    """What a line found so far, written to its file after each addition."""

    path: Path
    texts: list[str] = field(default_factory=list)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, **facts: Any) -> None:
        self.texts.append(text)
        self.facts |= facts
        self._write()

    def will_fail(self, because: str, mend: str, word: str = "will fail") -> None:
        """A problem. word: `may fail` for one that some searches do not meet."""
        self.problems.append((word, because, mend))
        self._write()

    def _write(self) -> None:
        data = {"texts": self.texts, "problems": self.problems, "facts": self.facts}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(data))
        part.replace(self.path)


# The lines ------------------------------------------------------------------------------------------------------------


def versions(found: Found) -> None:
    """Versions, and requirements of the project and of what it stands on that are not met."""
    there: dict[str, str] = {}
    for dist in importlib.metadata.distributions():  # along the path: the first of a name is the one that is imported
        if dist.metadata["Name"]:
            there.setdefault(dist.metadata["Name"], dist.version)
    named = {_canonical(name): version for name, version in there.items()}
    shown = ", ".join(f"{name} {named.get(_canonical(name), '-')}" for name in NAMED)
    found.say(f"python {platform.python_version()}, {shown}", python=platform.python_version(), versions=there)
    for package, wanted, here in _unmet():
        if here is None and package in WITHOUT:
            continue
        mend = f"put a wheel of {wanted} into .whl"
        if here is None:
            found.will_fail(f"{wanted} is not installed", mend)
        else:
            found.will_fail(f"{wanted} is wanted, and {here} is installed", mend, "may fail")


def _unmet() -> Iterator[tuple[str, str, str | None]]:
    """(name, requirement and whose, version here) of each that is not met, from the project's dependencies on."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [(text, "autotune") for text in project["dependencies"]]
    walked = {"autotune"}
    while waiting:
        text, by = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = _canonical(requirement.name)
        wanted = f"{name}{requirement.specifier} (by {by})"
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, wanted, None
            continue
        if not requirement.specifier.contains(here, prereleases=True):
            yield name, wanted, here
        if name not in walked:
            walked.add(name)
            waiting += [(each, name) for each in importlib.metadata.requires(name) or ()]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def machine(found: Found) -> None:
    """Processor, memory and disks that trainings need."""
    import psutil

    cores = len(os.sched_getaffinity(0))
    memory, shared, disk = (
        psutil.virtual_memory(),
        shutil.disk_usage("/dev/shm"),
        shutil.disk_usage(tempfile.gettempdir()),
    )
    found.say(
        f"{cores} cores, {_gib(memory.available)} of {_gib(memory.total)} memory free, "
        f"/dev/shm {_gib(shared.free)}, {tempfile.gettempdir()} {_gib(disk.free)} free"
    )
    if shared.free < 1 << 30:
        found.will_fail("/dev/shm has less than 1 GiB for the batches of workers", "--fix workers=0", "may fail")
    if disk.free < 10 << 30 and ON_CUDA:
        found.will_fail("less than 10 GiB are free for checkpoints", "set TMPDIR to a larger disk", "may fail")


def card(found: Found) -> None:
    """The card as NVML shows it, and what a context takes there: seconds, bytes, and whether they are given back."""
    if not _has_gpu(found):
        return
    import pynvml as nvml

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    facts = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "driver": nvml.nvmlSystemGetDriverVersion,
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "watts": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    known = {}
    for name, ask in facts.items():
        with contextlib.suppress(nvml.NVMLError):
            known[name] = ask()
    found.say(", ".join(f"{name} {value}" for name, value in known.items()), **known)
    if known.get("mig"):
        found.will_fail("the card is cut into slices (MIG), and NVML shows the whole", "ask for a whole card")
    before = _used(nvml, handle)
    child = subprocess.Popen([sys.executable, "-c", CONTEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    answer = child.stdout.readline()
    if not answer:
        found.will_fail("torch cannot make a CUDA context", "read the traceback: preflight.py --line card")
        return
    inside = json.loads(answer)
    during = _used(nvml, handle)
    child.communicate()
    end = time.monotonic() + 5
    while (after := _used(nvml, handle)) > before + (8 << 20) and time.monotonic() < end:
        time.sleep(0.1)
    keys = inside["keys"]
    found.say(
        f"context {inside['seconds']:.1f} s; NVML used {_mib(before)}, with it {_mib(during)} "
        f"(CUDA says {_mib(inside['used'])}), afterwards {_mib(after)}; "
        f"allocator settings: {' '.join(keys) if isinstance(keys, list) else keys}",
        context_s=inside["seconds"],
        context_bytes=during - before,
    )
    if before > 1 << 30:
        found.will_fail(
            f"{_mib(before)} are in use before anything was started", "wait, or end what uses the card", "may fail"
        )
    if after > before + (8 << 20):
        found.will_fail(
            "the memory of an ended process is not given back within 5 s", "see what else uses the card", "may fail"
        )
    if during <= before:
        found.will_fail(
            "NVML does not see what a process takes", "see that this container has the host's NVML", "may fail"
        )
    if not isinstance(keys, list):
        found.will_fail("this allocator shows no settings", "unset PYTORCH_CUDA_ALLOC_CONF's backend", "may fail")


def host(found: Found) -> None:
    """The process that starts probes, as far as it goes: seconds of its imports, what they left behind, a fork that computes."""
    os.environ |= HOST
    from autotune.probe.process.host import WAKES_CUDA, _import_libraries, open_later, why_not_fork

    for name in WAKES_CUDA:
        open_later(name)
    seconds = {}
    for name, load in (
        ("torch", lambda: __import__("torch")),
        ("Trainer", lambda: __import__("transformers", fromlist=["Trainer"]).Trainer),
        ("datasets", lambda: __import__("datasets")),
    ):
        begun = time.monotonic()
        load()
        seconds[name] = time.monotonic() - begun
        found.say(f"{name} {seconds[name]:.1f} s", import_s=dict(seconds))
    _import_libraries()
    import torch

    if ON_CUDA and not torch.version.cuda:
        found.will_fail(f"torch {torch.__version__} is built without CUDA", "take a Python whose torch has CUDA")
    threads = [
        (each / "comm").read_text().strip()
        for each in Path("/proc/self/task").iterdir()
        if each.name != str(os.getpid())
    ]
    files = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            files.append(os.readlink(each))
    devices = sorted({path for path in files if path.startswith("/dev/nvidia")})
    found.say(
        f"threads {' '.join(threads) or 'none'}; descriptors {' '.join(devices) or 'none'}; CUDA {torch.version.cuda}",
        threads=threads,
        descriptors=devices,
        cuda=torch.version.cuda,
    )
    if reason := why_not_fork(torch.cuda.is_initialized(), files, threads):
        found.will_fail(reason, "export AUTOTUNE_SPAWN=1: each probe then imports for itself")
    device = "cuda" if ON_CUDA else "cpu"
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        matrix = torch.randn(512, 512, device=device)
        os._exit(0 if bool((matrix @ matrix).isfinite().all()) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found.say(f"forked product on {device} {time.monotonic() - begun:.1f} s, exit {code}")
    if code:
        found.will_fail(
            f"a forked process cannot compute on {device} (exit {code})",
            "see the traceback: preflight.py --line host",
        )


def compilers(found: Found) -> None:
    """What torch.compile needs: a C compiler, Python's headers, and a Triton kernel that runs."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    header = Path(sysconfig.get_path("include"), "Python.h")
    found.say(f"C compiler {compiler or 'none'}, {header} {'is there' if header.exists() else 'is missing'}")
    if ON_CUDA and not compiler:
        found.will_fail("Triton needs a C compiler", "--fix compile=none, and leave part 4 out", "may fail")
    if ON_CUDA and not header.exists():
        found.will_fail("Triton needs Python.h", "--fix compile=none, and leave part 4 out", "may fail")
    import torch

    if not Path(torch.__file__).with_name("include").joinpath("ATen", "autocast_mode.h").exists():
        found.will_fail(
            "torch's include/ATen/autocast_mode.h is missing, from which traces know autocast's operations",
            "put that file of the same torch there; without it memory and speed are not estimated",
            "may fail",
        )
    if not _has_gpu(found):
        return
    begun = time.monotonic()
    try:
        right = _triton_adds(torch)
    except Exception as error:
        found.will_fail(
            f"a Triton kernel fails: {_first_line(error)}", "--fix compile=none, and leave part 4 out", "may fail"
        )
        return
    found.say(f"Triton kernel {time.monotonic() - begun:.1f} s, {'right' if right else 'WRONG'}")
    if not right:
        found.will_fail("a Triton kernel adds wrongly", "--fix compile=none, and leave part 4 out", "may fail")


def _triton_adds(torch: Any) -> bool:
    """Whether a kernel that was compiled just now adds two vectors."""
    global triton, tl  # a kernel reads its names from the module
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def add(x, y, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

    x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    add[(4,)](x, y, out, 1000, BLOCK=256)
    return bool(torch.equal(out, x + y))


def eight_bits(found: Found) -> None:
    """bitsandbytes: its library, and a step of its optimizer on a card."""
    if importlib.util.find_spec("bitsandbytes") is None:
        found.say("not installed: 8-bit optimizers are left out")
        return
    import bitsandbytes
    import torch

    library = type(bitsandbytes.cextension.lib).__name__
    found.say(f"{bitsandbytes.__version__}, library {library}")
    if not _has_gpu(found):
        return
    parameter = torch.nn.Parameter(torch.randn(128, 64, device="cuda"))
    parameter.grad = torch.randn_like(parameter)
    before = parameter.detach().clone()
    try:
        bitsandbytes.optim.AdamW8bit([parameter]).step()
        torch.cuda.synchronize()
    except Exception as error:
        found.will_fail(
            f"8-bit AdamW fails: {_first_line(error)}", "leave the 8-bit optimizer of part 3 out", "may fail"
        )
        return
    found.say(f"8-bit AdamW {'steps' if not torch.equal(before, parameter) else 'does nothing'}")


def product(found: Found) -> None:
    """bf16 products for ten seconds (five on a CPU) from a cold start: each second's rate, clock and power."""
    if ON_CUDA and not _has_gpu(found):
        return
    import torch

    device, side, seconds = ("cuda", 8192, 10) if ON_CUDA else ("cpu", 512, 5)
    read = _clock_reader()
    matrix = torch.randn(side, side, device=device).to(torch.bfloat16)
    rows: list[tuple[float, float | None, float | None]] = []
    for _ in range(seconds):
        begun, count = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < 1:
            for _ in range(8):
                matrix @ matrix
            count += 8
            if ON_CUDA:
                torch.cuda.synchronize()
        rows.append((2 * side**3 * count / passed / 1e12, *read()))
        found.facts |= {
            "tflops": [row[0] for row in rows],
            "mhz": [row[1] for row in rows],
            "watts": [row[2] for row in rows],
        }
        found._write()
    rates = [row[0] for row in rows]
    settled = settled_after(rates)
    known = [f"{rate:.3g}" + "".join(f"/{value:.0f}" for value in rest if value is not None) for rate, *rest in rows]
    units = "".join(unit for unit, value in (("/MHz", rows[0][1]), ("/W", rows[0][2])) if value is not None)
    first = rates[0] / statistics.mean(rates[-3:]) - 1
    after = f"not settled in {seconds} s" if settled is None else f"settled after {settled} s"
    found.say(
        f"TFLOP/s{units} each second: {' '.join(known)}; first {first:+.1%} of the last, {after}",
        settled_s=settled,
        first_off=first,
    )
    if not ON_CUDA:
        found.say("clock and power of a card: no GPU")
        return
    from autotune.probe.order import timings

    probe, confirmation = (timing.untimed_seconds_most for timing in timings(is_cpu=False))
    found.say(f"untimed in a probe up to {probe:g} s, in a confirmation up to {confirmation:g} s")
    if settled is None or settled > confirmation:
        found.will_fail(
            f"the rate is {after}, and a round's untimed part is {confirmation:g} s at most",
            "raise CUDA_CONFIRMATION.untimed_seconds_most",
            "may mislead",
        )


def settled_after(rates: Sequence[float]) -> int | None:
    """Seconds after which each second's rate lies within SETTLED of the mean of the last three; None if not within them."""
    mean = statistics.mean(rates[-3:])
    off = max((number for number, rate in enumerate(rates, 1) if abs(rate / mean - 1) > SETTLED), default=0)
    return off if off <= len(rates) - 3 else None


def _clock_reader() -> Callable[[], tuple[float | None, float | None]]:
    """Reads the clock in MHz and the power in W; None for what is unknown."""
    if not ON_CUDA:
        import psutil

        def of_cpu() -> tuple[float | None, float | None]:
            frequency = psutil.cpu_freq()
            return (frequency.current if frequency else None), None

        return of_cpu
    import pynvml as nvml

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    return lambda: (
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    )


def _has_gpu(found: Found) -> bool:
    """Whether there is a card to ask; says so if not."""
    if not ON_CUDA:
        found.say("no GPU")
        return False
    try:
        import pynvml

        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount():
            return True
        reason = "NVML shows no card"
    except Exception as error:
        reason = f"NVML: {_first_line(error)}"
    found.say("no GPU")
    found.will_fail(f"there is no GPU here ({reason})", "check nvidia-smi, or rehearse with DEVICE=cpu")
    return False


def _used(nvml: Any, handle: Any) -> int:
    with contextlib.suppress(Exception):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


LINES: dict[Callable[[Found], None], float] = {
    versions: 15,
    machine: 10,
    card: 30,
    product: 40,
    host: 75,
    compilers: 40,
    eight_bits: 30,
}
"""In their order, what tells most first, with the seconds that each has."""


# Running them ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line as a command to which the path of its file is added."""

    name: str
    deadline_s: float
    command: tuple[str, ...]


def answer(line: Line, deadline_s: float) -> dict[str, Any]:
    """What the line found by its end or its deadline: texts, problems, facts and seconds."""
    with tempfile.TemporaryDirectory(prefix="preflight-", ignore_cleanup_errors=True) as folder:
        path, log = Path(folder, "found.json"), Path(folder, "log.txt")
        begun = time.monotonic()
        with log.open("w") as output:
            # No pipe: whatever outlives the line must not be waited for.
            process = subprocess.Popen(
                [*line.command, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        problem = ""
        try:
            if code := process.wait(deadline_s):
                said = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
                name = signal.Signals(-code).name if code < 0 else f"exit {code}"
                problem = f"this line crashes ({name}): {(said or ['without a word'])[-1].strip()[:160]}"
        except subprocess.TimeoutExpired:
            problem = f"this line has no end within {deadline_s:.0f} s"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver cannot be ended
            process.wait(2)
        found: dict[str, Any] = {"texts": [], "problems": [], "facts": {}}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text())
        if problem:
            found["texts"].append(problem)
            after = f"after `{found['texts'][-2][:60]}`" if len(found["texts"]) > 1 else "at its start"
            found["problems"].append(("may fail", problem, f"look {after}: preflight.py --line {line.name}"))
        return found | {"seconds": time.monotonic() - begun}


def preflight(lines: Sequence[Line], seconds: float, show: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the lines one after another within this many seconds, and show each as it ends and a verdict for each problem."""
    begun, found = time.monotonic(), {}
    for line in lines:
        left = begun + seconds - time.monotonic()
        if left < 1:
            mend = f"run preflight.py --line {line.name}"
            unseen = {"seconds": 0.0, "texts": [], "problems": [("may fail", f"{line.name} was not looked at", mend)]}
            found[line.name] = unseen
            show(f"{line.name}: left out, no time is left")
            continue
        found[line.name] = answer(line, min(line.deadline_s, left))
        text = "; ".join(found[line.name]["texts"])
        show(
            f"{line.name} ({found[line.name]['seconds']:.1f} s): {text if len(text) <= MOST else text[: MOST - 1] + '…'}"
        )
    problems: dict[str, tuple[str, ...]] = {}  # several lines may meet the same one
    for name, each in found.items():
        for word, because, mend in each["problems"]:
            problems.setdefault(because, (name, word, because, mend))
    for name, word, because, mend in problems.values():
        show(f"=> {name}: {word} because {because} / mend: {mend}")
    if not problems:
        show(f"=> nothing that would fail, in {time.monotonic() - begun:.0f} s")
    return {"device": "cuda" if ON_CUDA else "cpu", "seconds": time.monotonic() - begun, "lines": found}


def own_lines() -> list[Line]:
    """The lines of this file."""
    return [
        Line(line.__name__, deadline_s, (sys.executable, str(Path(__file__).resolve()), "--line", line.__name__))
        for line, deadline_s in LINES.items()
    ]


def main() -> int:
    """0: nothing that would fail was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--json", type=Path, help="where to write all that was found")
    parser.add_argument("--line", choices=[line.__name__ for line in LINES], help="this line alone, with its traceback")
    parser.add_argument("file", nargs="?", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    if given.line:
        sys.path.insert(0, str(ROOT))
        path = given.file or Path(tempfile.mkdtemp(), "found.json")
        next(line for line in LINES if line.__name__ == given.line)(Found(path))
        if not given.file:
            print(path.read_text())
        return 0
    found = preflight(own_lines(), given.seconds)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return int(any(each["problems"] for each in found["lines"].values()))


if __name__ == "__main__":
    sys.exit(main())
