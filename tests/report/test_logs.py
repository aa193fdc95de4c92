"""The ends of logs: of trials that failed, from memory or disk, without places and tokens."""

from pathlib import Path

from autotune.core import Outcome, Trial
from autotune.report.logs import BYTES, LINES, log_tails
from tests.makers import completed, configuration, ended, trial

OF = configuration()


def crashed(number: int = 1, **facts: object) -> Trial:
    return Trial(number, OF, ended(Outcome.CRASHED, **facts))


def test_only_trials_that_did_not_complete_have_one() -> None:
    assert log_tails([trial(0, log_tail="fine"), crashed(log_tail="a traceback\n")], None) == {1: "a traceback"}
    assert log_tails([crashed()], None) == {}


def test_a_loaded_study_s_logs_are_read_from_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "probes" / "0001"
    (place / "confirmation-2").mkdir(parents=True)
    (place / "log.txt").write_text("x" * 10 * BYTES + "\nthe probe's\n")
    (place / "confirmation-2" / "log.txt").write_text("the second round's")
    late = Trial(1, OF, completed(OF), (completed(OF), ended(Outcome.CRASHED)))
    assert log_tails([crashed()], tmp_path) == {1: "the probe's"}
    assert log_tails([late], tmp_path) == {1: "the second round's"}
    assert log_tails([crashed(7)], tmp_path) == {}


def test_the_last_whole_lines_are_kept() -> None:
    tail = log_tails([crashed(log_tail="\n".join(map(str, range(100))))], None)[1]
    assert tail.splitlines() == [str(line) for line in range(100 - LINES, 100)]


def test_places_of_the_machine_and_tokens_are_left_out() -> None:
    log = 'File "/home/ann/work/train.py", line 3: token=hf_abcdefghijklmnopqrst!'
    assert log_tails([crashed(log_tail=log)], None) == {1: 'File "…/train.py", line 3: token=(a token)!'}
