"""Ctrl-C and SIGTERM, as the process that searches takes them: real signals, in this very process."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Configuration, Measurement
from autotune.core.errors import SearchFailed
from autotune.core.interrupt import (
    SAID,
    StopRequest,
    Terminated,
    check,
    ending_on_signals,
    graceful_interrupt,
    without_handlers,
)
from autotune.core.stop_reason import StopKind, stop_reason_of
from autotune.probe import ProbeOptions
from autotune.study.finish import finish
from autotune.study.loop import open_study, search
from autotune.study.plan import Plan, Progress, ProgressKind
from autotune.study.store import read_trial
from autotune.study.study import Study
from tests.makers import ALLOWED, machine, space, standing_of, warned
from tests.replay_probe import ReplayProbe


@pytest.fixture(autouse=True)
def python_s_own_handlers() -> Iterator[None]:
    """As below neither a shell's `&` nor `nohup`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    of_terminal = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, of_terminal)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


# The signals --------------------------------------------------------------------------------------------------------


def test_a_program_s_own_handlers_give_way_during_a_search_and_come_back() -> None:
    calls: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: calls.append(number)) for number in numbers]
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_request = StopRequest()
    with without_handlers(), graceful_interrupt(stop_request, lambda _: None):
        press()
        assert (stop_request.to_stop, calls) == (True, [])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(Terminated), ending_on_signals():
            signal.raise_signal(signal.SIGTERM)
    press()
    assert calls == [signal.SIGINT]
    for number, handle in zip((*numbers, signal.SIGHUP), (*before, ignored), strict=True):
        signal.signal(number, handle)


def test_the_first_ctrl_c_is_a_wish_and_says_so_the_second_interrupts() -> None:
    stop_request, messages = StopRequest(), []
    with graceful_interrupt(stop_request, messages.append):
        stop_request.check()
        press()
        assert stop_request.to_stop
        assert messages == [SAID]
        with pytest.raises(KeyboardInterrupt):
            stop_request.check()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert messages == [SAID]
    with pytest.raises(KeyboardInterrupt):
        press()  # the handler that was there is there again


def test_while_the_report_is_written_ctrl_c_waits_and_then_interrupts() -> None:
    stop_request, messages, written = StopRequest(), list[str](), list[str]()

    def write() -> None:
        with stop_request.held_back():
            press()
            press()
            written.append("whole")

    with graceful_interrupt(stop_request, messages.append), pytest.raises(KeyboardInterrupt):
        write()
    assert (written, messages) == (["whole"], [])


def test_once_the_report_is_written_ctrl_c_interrupts_at_once() -> None:
    stop_request, messages = StopRequest(), list[str]()
    with graceful_interrupt(stop_request, messages.append):
        with stop_request.held_back():
            pass
        with pytest.raises(KeyboardInterrupt):
            press()
    assert messages == []


def test_a_handler_of_somebody_else_stays_in_charge() -> None:
    met: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: met.append(number))
    stop_request = StopRequest()
    with graceful_interrupt(stop_request, met.append):
        press()
    assert met == [signal.SIGINT]
    assert not stop_request.to_stop
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_outside_the_main_thread_nothing_is_installed() -> None:
    handlers = []

    def body() -> None:
        with graceful_interrupt(StopRequest(), handlers.append), ending_on_signals():
            handlers.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert handlers == [(signal.default_int_handler, signal.SIG_DFL)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_command_interrupts_at_once_and_is_told_apart(number: signal.Signals) -> None:
    with ending_on_signals(), pytest.raises(Terminated) as met:
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL
    assert met.value.number == number
    assert stop_reason_of(met.value).text == f"ended by {number.name}"
    assert stop_reason_of(KeyboardInterrupt()).text == "interrupted by the user"
    StopRequest().check()  # and is forgotten with the command


def test_who_ignores_the_end_of_a_terminal_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            StopRequest().check()
    finally:
        signal.signal(signal.SIGHUP, before)


class Dying:
    """Python swallows what is raised while this is deleted: there comes SIGTERM."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Exceptions that Python swallowed."""
    met: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: met.append(raised.exc_value))
    return met


def test_a_sigterm_whose_exception_is_swallowed_is_raised_by_the_next_check(swallowed: list[BaseException]) -> None:
    for callback in (False, True):
        with ending_on_signals():
            dying: object = Dying() if not callback else set()
            watched = weakref.ref(dying, lambda _: signal.raise_signal(signal.SIGTERM)) if callback else None
            del dying
            assert isinstance(swallowed[-1], Terminated), watched
            with pytest.raises(Terminated):
                check()
            with pytest.raises(Terminated):
                StopRequest().check()
        check()
    assert len(swallowed) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_while_the_report_is_written_what_ends_a_command_waits(number: signal.Signals) -> None:
    stop_request, written = StopRequest(), list[str]()

    def write() -> None:
        with stop_request.held_back():
            signal.raise_signal(number)
            written.append("whole")

    with ending_on_signals(), pytest.raises(Terminated):
        write()
    assert written == ["whole"]


def test_a_report_that_is_written_because_of_sigterm_raises_nothing_of_its_own() -> None:
    stop_request = StopRequest()
    with ending_on_signals():
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        with stop_request.held_back():
            pass


def test_a_search_that_failed_is_not_called_interrupted() -> None:
    crashed = SearchFailed("The baseline crashed: RuntimeError: no such kernel.", "Its log is in a folder.")
    reason = stop_reason_of(crashed)
    assert (reason.kind, reason.advice) == (StopKind.FAILED, "Its log is in a folder.")
    assert reason.text == "the baseline crashed: RuntimeError: no such kernel"
    assert stop_reason_of(ValueError("of a watch")).text == "the search failed with ValueError"


# The loop -----------------------------------------------------------------------------------------------------------


class Pressing:
    """A probe beside which somebody presses Ctrl-C, at its nth call from 1; what it measures may be disturbed."""

    def __init__(self, at: int, disturbed: bool = False) -> None:
        self.inner, self.at, self.disturbed = ReplayProbe(machine), at, disturbed

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        measurement = self.inner(configuration, options)
        if len(self.inner.asked) == self.at:
            press()
        return replace(measurement, observed_warnings=warned("another process")) if self.disturbed else measurement


def opened(folder: Path, n_trials: int = 4, rounds: int = 2) -> Study:
    folder.mkdir(exist_ok=True)
    plan = Plan(n_trials, "samples_per_second", ALLOWED, sampler="brute-force", confirmation_rounds=rounds)
    return open_study(folder, space(micro_batch_size=(1, 2), precision=("fp32", "bf16")), plan)


def searched(study: Study, probe: Pressing, events: list[Progress]) -> None:
    search(study, probe, events.append)
    finish(study, lambda *_: pytest.fail("nothing is trained any more"), events.append)


def stopped(folder: Path, probe: Pressing) -> list[Progress]:
    """What those who watch are told of a search that ends by Ctrl-C."""
    study, events = opened(folder), []
    listening = graceful_interrupt(
        study.stop_request, lambda messages: events.append(Progress(ProgressKind.STOPPING, (), message=messages))
    )
    with listening, pytest.raises(KeyboardInterrupt):
        searched(study, probe, events)
    return events


def test_the_running_probe_ends_is_kept_and_is_the_last(tmp_path: Path) -> None:
    probe = Pressing(at=2)
    events = stopped(tmp_path, probe)
    assert [event.kind for event in events] == ["probing", "trial", "probing", "stopping", "trial"]
    assert len(probe.inner.asked) == 2
    stored = read_trial(tmp_path / "probes" / "0001", 1)
    assert stored is not None
    assert stored == events[-1].trial


def test_a_running_round_ends_is_kept_and_is_the_last(tmp_path: Path) -> None:
    probe = Pressing(at=6)
    events = stopped(tmp_path, probe)
    assert [event.kind for event in events][-3:] == ["confirming", "stopping", "confirmed"]
    assert len(probe.inner.asked) == 6
    rounds = list((tmp_path / "probes").glob("*/confirmation-1"))
    assert len(rounds) == 2
    stored = read_trial(rounds[0].parent, int(rounds[0].parent.name))
    assert stored is not None
    assert len(stored.confirmations) == 1


def test_what_was_disturbed_is_not_measured_again_for_somebody_who_wants_to_go(tmp_path: Path) -> None:
    probe = Pressing(at=1, disturbed=True)
    stopped(tmp_path, probe)
    assert len(probe.inner.asked) == 1
    patiently = Pressing(at=-1, disturbed=True)
    search(opened(tmp_path / "other", n_trials=1, rounds=0), patiently)
    assert len(patiently.inner.asked) == 3


def test_nothing_is_rehearsed_after_a_wish_to_stop_in_the_last_round(tmp_path: Path) -> None:
    counting = Pressing(at=-1)
    search(opened(tmp_path / "whole"), counting)
    last = len(counting.inner.asked)
    probe = Pressing(at=last)
    events = stopped(tmp_path / "stopped", probe)
    assert len(probe.inner.asked) == last
    assert standing_of(events[-1].trials).answer is not None
