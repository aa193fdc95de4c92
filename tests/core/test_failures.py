"""Exceptions, texts and exit codes, as the libraries really word them, and the outcome that each means."""

import re
import signal

import pyarrow
import pytest
import torch

from autotune.core import failures
from autotune.core.measurement import Outcome
from tests.probe.failure_texts import OTHER, OUT_OF_MEMORY

MIB, GIB = 2**20, 2**30


# The table of texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_every_librarys_text_for_no_memory_is_an_out_of_memory(text: str) -> None:
    failure = failures.from_exception(RuntimeError(text), "backward")
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert failure.where in ("backward", "data")
    assert failure.reason
    assert "\n" not in failure.reason
    assert len(failure.reason) <= 300
    log = f'probe 3 started\nTraceback (most recent call last):\n  File "train.py", line 1\nRuntimeError: {text}\n'
    assert failures.from_exit(1, 0, log).outcome is Outcome.OUT_OF_MEMORY
    assert failures.from_exit(-signal.SIGABRT, 0, log).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize(("outcome", "text"), OTHER.values(), ids=OTHER)
def test_texts_that_only_sound_like_it_mean_something_else(outcome: str, text: str) -> None:
    failure = failures.from_exception(RuntimeError(text), "forward")
    assert failure.outcome == outcome
    assert failure.refused_bytes is None
    assert failures.from_exit(1, 0, f"RuntimeError: {text}\n").outcome == outcome


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "out_of_memory.txt"),
        KeyError("CUDA out of memory"),
        AttributeError("module 'torch' has no attribute 'OutOfMemoryError'"),
        ImportError("cannot import name 'bad_alloc' from 'ENOMEM' (/srv/oom/memory exhausted.py)"),
        OSError("out_of_memory does not appear to have a file named config.json"),
        OSError("Can't load the configuration of '/data/CUDA out of memory/model'"),
        ValueError("bad path: /tmp/bad_alloc/rows"),
        RuntimeError("cannot read ENOMEM.json"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:50],
)
def test_names_that_contain_such_words_are_no_out_of_memory(error: Exception) -> None:
    assert failures.from_exception(error, "data").outcome is Outcome.CRASHED
    frames = f'{TRACEBACK}  File "/srv/out_of_memory.py", line 3, in bad_alloc\n    read("ENOMEM")\n'
    log = f"{frames}{type(error).__name__}: {error}\n"
    assert failures.from_exit(1, 0, log).outcome is Outcome.CRASHED
    assert failures.from_exit(1, 0, f"{frames}MemoryError\n").outcome is Outcome.OUT_OF_MEMORY


def test_a_reason_is_the_first_line_that_is_not_empty_and_without_a_message_the_line_that_raised() -> None:
    tied = RuntimeError("\n  Some tensors share memory\nSave them otherwise")
    assert failures.from_exception(tied, "data").reason == "RuntimeError: Some tensors share memory"
    log = f"{TRACEBACK}RuntimeError: \nSome tensors share memory\n"
    assert failures.from_exit(1, 0, log).reason == "ended with exit code 1: RuntimeError: Some tensors share memory"
    for error in (StopIteration(), MemoryError(), AssertionError("")):
        try:
            raise error
        except Exception as raised:
            reason = failures.from_exception(raised, "build").reason
        assert re.fullmatch(rf"{type(error).__name__} in test_failures.py, line \d+: raise error", reason)
    assert failures.from_exception(StopIteration(), "build").reason == "StopIteration"


def test_a_full_disk_is_named_as_such() -> None:
    failure = failures.from_exception(OSError(28, "No space left on device", "output/model.bin"), "build")
    assert failure.outcome is Outcome.CRASHED
    assert failure.reason.startswith("the disk is full")


@pytest.mark.parametrize(
    "name", [name for name, (_, text) in OTHER.items() if re.search("Resource temp|new thread", text)]
)
def test_a_limit_of_processes_is_named_with_what_raises_it(name: str) -> None:
    text = OTHER[name][1]
    last = text.splitlines()[-1]
    for failure in (
        failures.from_exception(RuntimeError(text), "data"),
        failures.from_exit(-signal.SIGABRT, 0, f"probe 3 started\n{text}\n"),
        failures.from_exit(1, 0, f"{TRACEBACK}RuntimeError: {text}\n"),
    ):
        assert failure.outcome is Outcome.CRASHED
        assert failures.NO_MORE_PROCESSES in failure.reason
        assert failure.reason.startswith(
            ("no further", "ended by SIGABRT: no further", "ended with exit code 1: no further")
        )
    assert "ulimit -u" in failures.NO_MORE_PROCESSES
    assert "--pids-limit" in failures.NO_MORE_PROCESSES
    assert last in failures.from_exception(RuntimeError(last), "data").reason or "\n" in text


def test_a_thread_of_openmp_may_lack_memory_or_be_one_too_many() -> None:
    failure = failures.from_exception(RuntimeError(OUT_OF_MEMORY["OpenMP"]), "forward")
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert failures.NO_MORE_PROCESSES in failure.reason


def test_a_lock_of_a_file_that_another_one_holds_is_no_limit_of_processes() -> None:
    error = OSError(11, "Resource temporarily unavailable", "cache.lock")
    assert "may start" not in failures.from_exception(error, "data").reason


def test_an_error_of_the_batches_is_met_in_the_data_whatever_the_stage_was() -> None:
    for name in ("loader worker, bus error", "torch, shared memory"):
        assert failures.from_exception(RuntimeError(OUT_OF_MEMORY[name]), "forward").where == "data"
    worker = RuntimeError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback ...\nValueError: bad")
    assert failures.from_exception(worker, "forward").where == "data"
    assert failures.from_exception(RuntimeError(OUT_OF_MEMORY["CUDA allocator"]), "forward").where == "forward"


# Classes come first ---------------------------------------------------------------------------------------------


def test_torchs_own_class_is_enough_without_a_known_text() -> None:
    failure = failures.from_exception(torch.OutOfMemoryError("worded as nobody worded it before"), "forward")
    assert failure == failures.Failure(
        Outcome.OUT_OF_MEMORY, "OutOfMemoryError: worded as nobody worded it before", "forward"
    )


def test_the_class_wins_over_a_text_that_means_a_crash() -> None:
    error = MemoryError("the last thing seen was an illegal memory access")
    assert failures.from_exception(error, "forward").outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("inner", [MemoryError("inner"), RuntimeError(OUT_OF_MEMORY["CUDA error, asynchronous"])])
def test_an_out_of_memory_is_found_under_the_error_that_hides_it(inner: Exception, named: bool) -> None:
    outer = ValueError("no batch")
    if named:
        outer.__cause__ = inner  # raise ... from inner
    outer.__context__ = inner  # raised while inner was handled
    assert failures.from_exception(outer, "data").outcome is Outcome.OUT_OF_MEMORY


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    assert failures.from_exception(first, "build").outcome is Outcome.CRASHED


def test_the_libraries_that_are_here_word_it_as_the_table_says() -> None:
    import numpy

    for allocate, stage, size in (
        (lambda: torch.empty(2**50), "forward", 2**52),
        (lambda: pyarrow.allocate_buffer(2**62), "data", 2**62),
        (lambda: numpy.zeros(2**50), "data", 2**53),
    ):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        failure = failures.from_exception(caught.value, stage)
        assert (failure.outcome, failure.refused_bytes) == (Outcome.OUT_OF_MEMORY, size)


# What was refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("CUDA allocator", 2 * GIB),
        ("CUDA allocator under a fraction", 20 * MIB),
        ("MPS", int(292.5 * MIB)),
        ("MPS, small", 256),
        ("torch on a CPU", 1099511627776),
        ("torch on a CPU, earlier wording", 5 * GIB),
        ("numpy", 8 * GIB),
        ("Arrow, growing", 4096),
    ],
)
def test_the_refused_bytes_are_read_from_the_text(name: str, refused: int) -> None:
    assert failures.from_exception(RuntimeError(OUT_OF_MEMORY[name]), "forward").refused_bytes == refused


# Exit codes and signals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "killed", "log", "reason"),
    [
        (-9, 0, "probe 3 started\n", "ended by SIGKILL (signal 9), perhaps by the kernel's out-of-memory killer"),
        (-signal.SIGSEGV, 0, "", "ended by SIGSEGV"),
        (-signal.SIGBUS, 0, "", "ended by SIGBUS"),
        (-63, 1, "", "ended by signal 63"),
        (0, 0, "all went well\n", "ended without an answer, claiming success"),
        (0, 0, OUT_OF_MEMORY["CUDA allocator"], "ended without an answer, claiming success"),
        (3, 0, "first\nValueError: the last word\n\n", "ended with exit code 3: ValueError: the last word"),
        (3, 0, "", "ended with exit code 3: no output"),
    ],
)
def test_an_end_without_an_answer_is_a_crash_with_its_signal_or_its_last_line(
    code: int, killed: int, log: str, reason: str
) -> None:
    assert failures.from_exit(code, killed, log) == failures.Failure(Outcome.CRASHED, reason)


def test_sigkill_is_an_out_of_memory_where_the_kernel_says_so() -> None:
    failure = failures.from_exit(-signal.SIGKILL, 1, "probe 3 started\n")
    assert (failure.outcome, failure.where) == (Outcome.OUT_OF_MEMORY, "host")


WARNING = "/lib/python3/site-packages/x/y.py:88: FutureWarning: `rpc` moves elsewhere.\n  warnings.warn(\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    open(x)\n'


def test_a_librarys_warning_is_never_the_reason() -> None:
    failure = failures.from_exit(1, 0, f"starting\n{TRACEBACK}OSError: no such file\nsee the manual\n{WARNING}")
    assert failure.reason == "ended with exit code 1: OSError: no such file"
    assert failures.from_exit(1, 0, f"no licence\n{WARNING}{WARNING}").reason == "ended with exit code 1: no licence"
    assert failures.from_exit(1, 0, WARNING).reason == "ended with exit code 1: no output"


def test_the_relevant_end_of_an_output_begins_with_the_last_traceback() -> None:
    log = f"{WARNING}{TRACEBACK}KeyError: 'caught'\n{TRACEBACK}{WARNING}OSError: no such file\n"
    assert failures.relevant_end(log) == f"{TRACEBACK}OSError: no such file"
    assert failures.relevant_end(f"one\n{WARNING}two\n") == "one\ntwo"
    assert failures.relevant_end(WARNING) == ""


@pytest.mark.parametrize("last", ["MemoryError", "MemoryError: no more", "torch.OutOfMemoryError: worded anew"])
def test_a_log_that_ends_in_the_class_is_an_out_of_memory(last: str) -> None:
    assert failures.from_exit(1, 0, f"Traceback (most recent call last):\n  ...\n{last}\n").outcome == "out_of_memory"
    assert failures.from_exit(1, 0, f"no {last.replace(': ', ' ')} here, ValueError\n").outcome == "crashed"


def test_no_rule_reaches_from_one_line_of_a_log_into_another() -> None:
    log = "NCCL version 2.27.5\nstep 1\ncuDNN error: CUDNN_STATUS_NOT_SUPPORTED\nthe memory of the first run\n"
    assert failures.from_exit(1, 0, log).outcome is Outcome.CRASHED


def test_no_reason_names_a_place_of_the_machine_or_a_token() -> None:
    met = failures.from_exception(OSError("401 for hf_abcdefghijklmnopqrst at /home/ann/data/rows.csv"), "data")
    assert met.reason == "OSError: 401 for (a token) at …/rows.csv"
    assert failures.from_exit(2, 0, "cannot open /home/ann/x.so\n").reason.endswith("cannot open …/x.so")
    unsupported = failures.from_text("first\n/home/ann/kernels/a.cu: no kernel image is available for execution\n")
    assert unsupported.reason.endswith("…/a.cu: no kernel image is available for execution")


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has the older interface only")
def test_what_this_torch_says_of_tf32_that_training_arguments_set_is_known(fresh_float32_precision: None) -> None:
    torch.backends.fp32_precision = "tf32"
    for ask in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        with pytest.raises(RuntimeError) as caught:
            ask()
        failure = failures.from_exception(caught.value, "forward")
        assert failure.outcome is Outcome.UNSUPPORTED
        assert "TF32" in failure.reason


def test_what_flex_attention_refuses_is_unsupported() -> None:
    from transformers.integrations.flex_attention import flex_attention_forward

    first = torch.zeros(1, 1, 16, 16)
    with pytest.raises(ValueError, match="dropout") as caught:
        flex_attention_forward(torch.nn.Module(), first, first, first, None, dropout=0.1)
    assert failures.from_exception(caught.value, "forward").outcome is Outcome.UNSUPPORTED


def raised_in(file: str) -> OSError:
    """A full disk, met by code of this file."""
    code = compile("raise OSError(28, 'No space left on device')", file, "exec")
    with pytest.raises(OSError, match="No space left") as caught:
        exec(code, {})
    return caught.value


def test_semaphores_that_find_no_room_are_named_as_shared_memory_and_a_full_disk_as_a_disk() -> None:
    error = AttributeError("'_MultiProcessingDataLoaderIter' object has no attribute '_shutdown'")
    error.__context__ = raised_in("/usr/lib/python3.11/multiprocessing/synchronize.py")
    failure = failures.from_exception(error, "data")
    assert (failure.outcome, failure.where) == (Outcome.OUT_OF_MEMORY, "data")
    assert failure.reason.startswith("/dev/shm")
    assert "disk" not in failure.reason
    failure = failures.from_exception(raised_in("/home/ann/my_multiprocessing.py"), "data")
    assert failure.outcome is Outcome.CRASHED
    assert failure.reason.startswith("the disk is full")
