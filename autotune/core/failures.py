"""Exception, text or exit code -> outcome and reason.

Out of memory is recognised by class, then by the texts below, then by the exit signal together with the kernel's counter.
A text that merely contains the word memory is not an out-of-memory.
"""

import errno
import re
import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

from autotune.core.measurement import Outcome
from autotune.core.paths import scrubbed

# Messages of allocators and libraries when memory ran out, each from the library's source or a report of its users.
_OUT_OF_MEMORY = (
    r"CUDA out of memory",
    r"(?:cuda|hip)ErrorMemoryAllocation",
    r"CUFFT_ALLOC_FAILED",
    r"CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOC\w*",
    r"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.*(?:memory|workspace)",
    r"[Uu]nable to find (?:a valid cuDNN|an engine to execute|an algorithm)",
    r"FIND was unable to find an engine",
    r"HIP out of memory",
    r"hipErrorOutOfMemory",
    r"MPS backend out of memory",
    r"XPU out of memory",
    r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST|RESOURCES)\w*",
    r"PI_ERROR_OUT_OF_(?:RESOURCES|HOST_MEMORY)",
    r"Cuda failure (?:2\b|'out of memory')",
    r"Failed to CUDA (?:calloc|host alloc)",
    r"CUDA Setup failed.*out of memory",
    r"\[Errno 12\]",
    r"\bENOMEM\b",
    r"WinError 1455\b",
    r"\bbad_alloc\b",
    # In any library's words: the phrase at the beginning of its message, or an allocation that was refused. Advice on what
    # to do "if you run out of memory" is not meant.
    r"(?im:(?:^|[:\])>'\"] ?|\berror )out of memory\b)",
    r"(?i:(?:failed|unable|not able|cannot|can't|could ?n[o']t)(?: to)? (?:pre-?|m|re)?alloc(?:ate)?\b"
    r"[^\n]{0,60}?(?:\bbytes?\b|\bmemory\b|\d ?[KMGTP]i?B\b))",
    r"(?i:memory allocation of \d+ bytes failed)",  # Rust's abort
    r"(?i:tcmalloc: (?:allocation failed|large alloc \d+ bytes == \(nil\)))",
    r"(?i:(?:not enough|insufficient) (?:\w+ )?memory\b(?! (?:bandwidth|alignment)))",
    r"(?i:ran out of memory trying|is out of (?:device|host|gpu) memory|memory exhausted)",
    r"\w+_(?:STATUS|ERROR)_ALLOC(?:ATION)?_FAILED",
    r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    r"\b(?:[A-Z_]+_)?OUT_OF_(?:(?:HOST|DEVICE)_)?MEMORY\b",
    r"\bRESOURCE_EXHAUSTED\b",  # XLA
    r"\bOOM when allocating\b",  # TensorFlow
    r"Invalid buffer size: [\d.]+ [KMGT]i?B",  # MPS
    r"unable to write to file </torch_",
    r"(?m:(?:^|: )(?:[\w.]+\.)?(?:OutOfMemoryError|MemoryError)\b)",  # a traceback's last line, in a log
    r"_ArrayMemoryError",
    r"ArrowMemoryError",
    r"(?:malloc|realloc|posix_memalign) of size \d+ failed",  # Arrow
    r"libgomp: (?:Thread creation failed|Out of memory)",
    r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (?:is )?killed by signal: Bus error",
    r"unable to (?:open|allocate) shared memory object .*: (?:Cannot allocate memory|No space left)",
)
_OUT_OF_MEMORY_RULE = re.compile("|".join(f"(?:{text})" for text in _OUT_OF_MEMORY))

# Names, whatever words they consist of: frames of a traceback, messages about names, quoted names, paths and files.
_NAMES_RULE = re.compile(
    r"(?m:^ *File \"[^\n]*(?:\n {4}[^\n]*)?)|"
    r"(?m:^(?:\[\w+\]: ?)?(?:Key|Attribute|Name|ModuleNotFound|FileNotFound|FileExists|IsADirectory|NotADirectory|Permission)"
    r"Error: .*$)|(['\"])[\w./-]*\1|(['\"])[^'\"\n]*/[^'\"\n]*\2|(?<![\w<])[\w.-]*/[\w./-]*|\b[\w-]+\.[a-z]{1,8}\b(?!\.)"
)

NO_MORE_PROCESSES = (
    "no further process or thread may start (raise ulimit -u, or pids.max of the control group: in docker --pids-limit)"
)
# Not OpenMP's of GCC: a thread needs memory for its stack too, and a training on a CPU has a limit of that.
_NO_MORE_PROCESSES = (
    r"can't start new thread|BlockingIOError: \[Errno 11\] Resource temporarily unavailable(?!: )|"
    r"fork: (?:retry: )?Resource temporarily|"
    r"pthread_create failed|OMP: System error #11\b|(?:ThreadPoolBuildError|system_error)\b.*\s*.*Resource temporarily"
)

# These sound like an out-of-memory and are not, or cannot work here; the first that matches counts. Every error of
# CUDA ends in advice on "device-side assertions": only a triggered one is meant.
_CRASHED = {
    r"illegal memory access|shared memory.*: Permission denied|device-side assert triggered|misaligned address": "",
    r"\[Errno 28\]|No space left on device": "the disk is full",
    r"\[Errno 30\]|Read-only file system": "a trial writes nothing of yours (write below tempfile.gettempdir() instead)",
    _NO_MORE_PROCESSES: NO_MORE_PROCESSES,
}
COMPILING_FAILS = "compiling fails"
_UNSUPPORTED = {
    r"OutOfResources|out of resources?: .*Hardware limit": "a kernel's tile does not fit this chip at any batch size",
    r"cannot allocate memory in static TLS block": "the library cannot be loaded that late",
    r"does not support (?:gradient|activation) checkpointing": "",
    r"has no attribute '(?:gradient|activation)_checkpointing_enable'": "",
    r"doesn't support (?:bf16|bfloat16|fp16|float16)|Your setup doesn't support bf16": "",
    r"--tf32 requires Ampere": "",
    r"requires? `?bitsandbytes|bitsandbytes is not (?:installed|available)": "",
    r"no kernel image is available for execution": "this build of the library has no code for the chip",
    r"not implemented for '(?:Half|BFloat16)'|does not support an attention implementation": "",
    r"No (?:available|viable) (?:kernel|backend)|No operator found for `memory_efficient_attention": (
        "an attention kernel cannot do this"
    ),
    r"No (?:valid )?execution plans? support|mha_graph|CUDNN_STATUS_EXECUTION_FAILED": "cuDNN cannot do this attention",
    r"accessing (?:gradient )?tensor output of CUDAGraphs that has been overwritten|"
    r"in the cudagraph pool not tracked as outputs|operation not permitted when stream is capturing|"
    r"operation failed due to a previous error during capture": "CUDA graphs cannot hold this step",
    r"cudaMallocAsync does not yet support": "torch does this with its native allocator only",
    r"has been toggled on, but|(?:was|is) toggled on, but|the package \S+ seems to be not installed": (
        "an attention package is missing or cannot be used here"
    ),
    r"(?i:flash ?attention (?:2 |3 )?(?:forward |backward )?only supports?)": "its kernels cannot do this",
    r"requires? (?:a )?device with capability|requires \.target sm_\d+|not supported (?:in|on) this architecture|"
    r"Unsupported conversion from .* to|is not currently implemented for the MPS device|"
    r"Could not run '\S+' with arguments from the '\w+' backend": "this device has no code for it",
    r"Cannot find a working triton installation|Triton is not available|torch\.compile is not (?:yet )?supported on|"
    r"not yet supported for torch\.compile|Dynamo is not supported on": "this installation cannot compile",
    r"CUDA_HOME does not exist, unable to compile|Unable to JIT load the \S+ op|No GPU found. A GPU is needed for quant|"
    r"cannot perform fine-tuning on purely quantized models": "the library cannot do this here",
    r"Target modules .* not found in the base model|`flex_attention` does not support `dropout`": "",
    # What training arguments set by the newer way, inductor requests by the older one.
    r"mix of the legacy and new APIs to set the (?:matmul precision|TF32)": (
        "this torch cannot compile together with TF32 that training arguments set"
    ),
    r"(?:InductorError|BackendCompilerFailed|CppCompileError|InternalTorchDynamoError)\b": COMPILING_FAILS,
}
_OTHER_RULES = [
    (outcome, re.compile(text), reason)
    for outcome, rules in ((Outcome.CRASHED, _CRASHED), (Outcome.UNSUPPORTED, _UNSUPPORTED))
    for text, reason in rules.items()
]

SHARED_MEMORY_FULL = "/dev/shm, the memory that data loader workers share, is full (in docker: raise --shm-size)"

_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")  # as warnings.formatwarning writes them, the source line below
# Of Rust (`  12: name`, below it `     at file`), and of C++ as torch writes it.
_NATIVE_FRAME = re.compile(r"\s+\d+: +\S|\s+at \S+:\d+|frame #\d+: |(?:stack backtrace|Exception raised from .*):?$")
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (?:is )?killed by signal: Killed")
_DATA = re.compile(r"DataLoader worker|in _worker_loop|[Ii]nsufficient shared memory|shared memory(?: object|\(shm\))")
# If a library says MB, it divided by 1024 twice (torch's MPS and CPU allocators in earlier releases).
_UNITS = {"": 1, "bytes": 1, "B": 1} | {
    f"{letter}{binary}B": 1024**power for power, letter in enumerate("KMGTPE", start=1) for binary in ("i", "")
}
_REFUSED = (
    re.compile(r"[Tt]ried to allocate ([\d.]+) ?([KMGTPE]i?B|bytes|B)?"),
    re.compile(r"[Uu]nable to allocate ([\d.]+) ?([KMGTPE]iB)"),
    re.compile(r"(?:malloc|realloc) of size (\d+)()"),
    re.compile(r"(?i:allocat\w+(?: of)? (?:memory \()?)([\d.]+) ?([KMGTPE]i?B|bytes)"),
)


@dataclass(frozen=True)
class Failure:
    """Failure of a probe."""

    outcome: Outcome
    reason: str
    where: str = ""  # the stage, if known
    refused_bytes: int | None = None  # of the request that was refused


def from_exception(error: BaseException, stage: str) -> Failure:
    """The failure that an exception in this stage (build, data, forward, backward, optimizer) means."""
    chain = _chain(error)
    if full := next(filter(_fills_shared_memory, chain), None):
        return Failure(Outcome.OUT_OF_MEMORY, f"{SHARED_MEMORY_FULL}: {_first_line(str(full))}", "data")
    text = "\n".join(map(_described, chain))
    where = "data" if _DATA.search(text) else stage
    by_class = any(isinstance(link, MemoryError) or type(link).__name__ == "OutOfMemoryError" for link in chain)
    failure = from_text(text, where)
    if by_class and failure.outcome is not Outcome.OUT_OF_MEMORY:
        failure = Failure(Outcome.OUT_OF_MEMORY, _first_line(text), where, _refused(text))
    return failure


def _fills_shared_memory(error: BaseException) -> bool:
    """True if the full disk is shared memory: Python's semaphores and queues are files there."""
    is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    frames = traceback.extract_tb(error.__traceback__) if is_full else []
    return any("multiprocessing" in Path(frame.filename).parts for frame in frames)


def from_text(text: str, where: str = "") -> Failure:
    """The failure that a message or a log's tail means."""
    for outcome, rule, reason in _OTHER_RULES:
        if match := rule.search(text):
            # A full disk and full shared memory have the same errno: the table above has the latter by name. And a
            # compiler may fail for lack of memory.
            if ("No space left" in match[0] or reason == COMPILING_FAILS) and _out_of_memory(text):
                continue
            line = _line_of(text, match.start())
            return Failure(outcome, f"{reason}: {line}" if reason else line, where)
    if match := _out_of_memory(text):
        line = _line_of(text, match.start())
        if "Thread creation failed" in line:
            line = f"no memory for a thread, or {NO_MORE_PROCESSES}: {line}"
        return Failure(Outcome.OUT_OF_MEMORY, line, where, _refused(text))
    return Failure(Outcome.CRASHED, _first_line(text), where)


def _out_of_memory(text: str) -> re.Match[str] | None:
    """The match of a message about memory, at its position in this text; names are left out."""
    return _OUT_OF_MEMORY_RULE.search(_NAMES_RULE.sub(lambda name: "#" * len(name[0]), text))


def worker_killed_for_memory(log_tail: str, kernel_oom_kills: int) -> bool:
    """True if a data loader's worker was killed and the kernel has ended processes for lack of memory."""
    return bool(kernel_oom_kills and _WORKER_KILLED.search(log_tail))


def from_exit(code: int | None, kernel_oom_kills: int, log_tail: str) -> Failure:
    """The failure of a child that ended without an answer.

    code: exit code, or -signal. kernel_oom_kills: number of processes that the kernel ended for memory meanwhile.
    """
    if code == -signal.SIGKILL and kernel_oom_kills:
        return Failure(Outcome.OUT_OF_MEMORY, "killed by the kernel: the machine's memory ran out", "host")
    failure = from_text(log_tail)
    if failure.outcome is Outcome.OUT_OF_MEMORY and code not in (0, None):
        return failure
    cause = failure.reason if failure.reason.startswith(NO_MORE_PROCESSES) else ""
    if code is not None and code < 0:
        return Failure(Outcome.CRASHED, ": ".join(filter(None, (f"ended by {_signal_text(-code)}", cause))))
    if code == 0:
        return Failure(Outcome.CRASHED, "ended without an answer, claiming success")
    cause = cause or _shortened(_error_line(log_tail) or "no output")
    return Failure(failure.outcome, f"ended with exit code {code}: {cause}")


def relevant_end(log: str, lines: int = 30) -> str:
    """The end of a process's output with the reason of its end: from the last traceback on, without Python's warnings."""
    return "\n".join(_relevant_lines(log)[-lines:])


def without_frames(log: str) -> str:
    """The output without the frames of native backtraces, which push what went wrong out of its end."""
    return "".join(line for line in log.splitlines(keepends=True) if not _NATIVE_FRAME.match(line))


def _relevant_lines(log: str) -> list[str]:
    """The lines from the last traceback on, or all, without Python's warnings and the source line below each."""
    relevant: list[str] = []
    after_warning = False
    for line in log.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            relevant.clear()
        quoted = after_warning and line.startswith("  ")
        after_warning = bool(_WARNING.match(line))
        if line.strip() and not after_warning and not quoted:
            relevant.append(line.rstrip())
    return relevant


def _error_line(log: str) -> str:
    """The line that names the error: the last traceback's, else the last one."""
    lines = _relevant_lines(log)
    if lines and lines[0].startswith("Traceback"):
        at = next((at for at, line in enumerate(lines) if at and not line.startswith(" ")), len(lines) - 1)
        # A message that begins with an empty line is in the next one.
        return " ".join(lines[at : at + 1 + lines[at].endswith(":")])
    return lines[-1].strip() if lines else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception and the exceptions that it was raised from, the outermost first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _described(error: BaseException) -> str:
    """Class and message of an exception; without a message the line that raised it."""
    name, frames = type(error).__name__, traceback.extract_tb(error.__traceback__)
    if message := str(error).strip():
        return f"{name}: {message}"
    at = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"{name}{at}".rstrip(": ")


def _refused(text: str) -> int | None:
    match = next(filter(None, (rule.search(text) for rule in _REFUSED)), None)
    return int(float(match[1]) * _UNITS[match[2] or ""]) if match else None


def _line_of(text: str, position: int) -> str:
    return _first_line(text[text.rfind("\n", 0, position) + 1 :])


def _first_line(text: str) -> str:
    return _shortened(text.strip().split("\n")[0].strip())


def _shortened(line: str) -> str:
    """The part of a line that a reason needs, without paths and tokens: reports are shared."""
    return scrubbed(line[:2000])[:300]


def _signal_text(number: int) -> str:
    """`SIGSEGV`; for SIGKILL also its number and its usual sender."""
    if number == signal.SIGKILL:
        return f"SIGKILL (signal {number}), perhaps by the kernel's out-of-memory killer"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
