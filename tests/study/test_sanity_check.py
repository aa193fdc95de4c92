"""A rehearsal is made once and kept beside its trial."""

from pathlib import Path
from typing import Any

from autotune.core import Configuration, Outcome
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck
from autotune.study.sanity_check import KEPT, check_sanity
from tests.makers import configuration

DONE = SanityCheck(eval_batch_size=8, eval_batches_tried=(8,), checkpoint_bytes=62, checkpoint_seconds=0.1)


class Attempts:
    """Counts what is attempted, and answers all alike."""

    def __init__(self, answer: Any, failure: Failure | None = None) -> None:
        self.made: list[tuple[Configuration, Path]] = []
        self._end = (answer, failure)

    def __call__(self, of: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        self.made.append((of, folder))
        return self._end


def test_a_rehearsal_is_made_once_and_then_read(tmp_path: Path) -> None:
    attempts, folder = Attempts(DONE.to_dict()), tmp_path / "rehearsal"
    assert check_sanity(configuration(8), attempts, folder) == DONE
    assert check_sanity(configuration(8), attempts, folder) == DONE
    assert attempts.made == [(configuration(8), folder)]


def test_another_configuration_is_rehearsed_anew(tmp_path: Path) -> None:
    check_sanity(configuration(8), Attempts(DONE.to_dict()), tmp_path)
    attempts = Attempts(SanityCheck(eval_batch_size=16).to_dict())
    assert check_sanity(configuration(16), attempts, tmp_path).eval_batch_size == 16
    assert len(attempts.made) == 1


def test_a_damaged_file_is_rehearsed_anew(tmp_path: Path) -> None:
    for damage in ("", "[]", '{"configuration": 1}'):
        (tmp_path / KEPT).write_text(damage)
        assert check_sanity(configuration(), Attempts(DONE.to_dict()), tmp_path) == DONE


def test_a_process_that_died_is_a_problem_and_kept_too(tmp_path: Path) -> None:
    attempts = Attempts(None, Failure(Outcome.TIMED_OUT, "not done after 60 s"))
    for _ in range(2):
        assert check_sanity(configuration(), attempts, tmp_path).lines() == [
            "rehearsal: timed out: not done after 60 s"
        ]
    assert len(attempts.made) == 1
