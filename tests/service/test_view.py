"""A search on a server is shown as one of this machine: the same lines and the same table."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.core import Outcome, Trial
from autotune.judge.standing import Standing
from autotune.report.live.terminal import table
from autotune.report.live.text import gain_text, lead_text, now_text, to_go_text
from autotune.report.live.views import print_line
from autotune.sampler.policy import Why
from autotune.service.runner import Events
from autotune.service.view import View
from autotune.study.plan import Progress, ProgressKind
from autotune.study.schedule import MESSAGES
from tests.makers import completed, configuration, ended, out_of_memory, standing_of, trial, warned

TRIALS = (
    trial(0, 40.0),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    Trial(2, configuration(16), ended(Outcome.CRASHED, reason="it fell: hard, twice")),
    trial(3, 80.0, of=configuration(16, precision="bf16"), observed_warnings=warned("another process")),
)


def progress(kind: ProgressKind, number: int, trials: tuple[Trial, ...] = TRIALS, message: str = "") -> Progress:
    trial = trials[number]
    return Progress(
        kind=kind,
        standing=standing_of(trials[: number + (kind == "trial")] if kind in ("probing", "trial") else trials),
        number=number,
        configuration=trial.configuration,
        trial=trial if kind in ("trial", "confirmed") else None,
        probes_left=5,
        seconds_left=61.0,
        seconds_to_go=361.0,
        max_gain=0.25,
        message=message,
    )


def with_round(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The same trials after a confirmation round of the last."""
    measured = completed(trials[3].configuration, 81.0, round=1)
    return (*trials[:3], Trial(3, trials[3].configuration, trials[3].measurement, (measured,)))


SEARCH = (
    Progress(ProgressKind.PREPARING, Standing(), message="estimating memory"),
    *(progress(kind, number) for number in range(4) for kind in (ProgressKind.PROBING, ProgressKind.TRIAL)),
    progress(ProgressKind.CONFIRMING, 3, message=MESSAGES[Why.COMPARE]),
    progress(ProgressKind.CONFIRMED, 3, with_round(TRIALS)),
    Progress(ProgressKind.FINISHING, standing_of(with_round(TRIALS)), message="comparing losses"),
)


def remote(search: tuple[Progress, ...]) -> list[Progress]:
    """The same, as it comes from a runner through a server to a client."""
    lines, view = io.StringIO(), View()
    events = Events(lines)
    for progress in search:
        events.watch(progress)
    sent = [json.loads(line)["event"] for line in lines.getvalue().splitlines() if line]
    return [shown for event in sent if (shown := view.progress(event["kind"], event["body"]))]


def printed(search: list[Progress]) -> list[str]:
    console = Console(file=io.StringIO(), width=400)
    for progress in search:
        print_line(console, progress)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_lines_of_a_log_are_the_same() -> None:
    lines = printed(remote(SEARCH))
    assert lines == printed([*SEARCH])
    assert len(lines) == 8


@pytest.mark.parametrize("width", [60, 120])
def test_the_table_and_the_lines_below_are_the_same(width: int) -> None:
    def drawn(progress: Progress) -> list[str]:
        around = [lead_text(progress), gain_text(progress), now_text(progress), to_go_text(progress)]
        return [*(line.plain for line in table(progress, width, 12)), *around]

    shown = remote(SEARCH)
    assert [progress.kind for progress in shown] == [progress.kind for progress in SEARCH]
    for ours, theirs in zip(SEARCH, shown, strict=True):
        if ours.trials:
            assert drawn(theirs) == drawn(ours)


def test_a_trial_cannot_win_for_as_long_as_the_search_says_so() -> None:
    barred = (*TRIALS[:3], replace(TRIALS[3], disqualified_reason="the rounds were too short"))
    begin = Progress(ProgressKind.PREPARING, Standing(), message="reading device, model and data")
    search = (*SEARCH[:-1], progress(ProgressKind.CONFIRMING, 3, barred), begin, progress(ProgressKind.PROBING, 3))
    reasons = [[trial.disqualified_reason for trial in shown.trials[3:]] for shown in remote(search)]
    assert reasons[-4:] == [[""], ["the rounds were too short"], ["the rounds were too short"], [""]]


def test_trials_whose_files_are_on_another_machine_are_not_shown() -> None:
    """A `lost` event takes the place of a trial's; what came after it still names the trial."""
    lines, view = io.StringIO(), View()
    events = Events(lines)
    events.watch(
        progress(ProgressKind.CONFIRMING, 3, (*TRIALS[:3], replace(TRIALS[3], disqualified_reason="it differs")))
    )
    sent = [json.loads(line)["event"] for line in lines.getvalue().splitlines() if line]
    assert [event["kind"] for event in sent] == ["trial"] * 4 + ["progress"]
    *lost, last = sent
    assert [view.progress("lost", event["body"]) for event in lost] == [None] * 4
    shown = view.progress(last["kind"], last["body"])
    assert shown is not None
    assert shown.trials == ()


def test_waiting_in_the_queue_is_a_line_and_the_end_is_none() -> None:
    view = View()
    waiting = view.progress("state", {"state": "queued", "attempt": 1, "reason": "the server was started again"})
    assert waiting is not None
    assert printed([waiting]) == ["queued: the server was started again"]
    assert view.progress("state", {"state": "done", "attempt": 1}) is None
