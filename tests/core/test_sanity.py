"""What a rehearsal came to, in words and on disk."""

import json

from autotune.core.measurement import Outcome
from autotune.core.sanity import Problem, SanityCheck
from tests.makers import MIB

DONE = SanityCheck(
    eval_batch_size=8,
    eval_batches_tried=(8,),
    eval_seconds=0.2,
    checkpoint_bytes=62 * MIB,
    checkpoint_seconds=0.42,
    peak_bytes={"training": 700 * MIB, "evaluation": 540 * MIB, "saving": 500 * MIB},
)


def failed(where: str, outcome: Outcome = Outcome.CRASHED, reason: str = "it broke", **facts: object) -> SanityCheck:
    return SanityCheck(**{"problems": (Problem(where, outcome, reason),), **facts})


def test_a_rehearsal_says_which_evaluation_batch_fits_and_what_a_checkpoint_takes() -> None:
    assert DONE.lines() == ["evaluation: one batch of 8 fits (peak 540 MiB)", "checkpoint: 62 MiB in 0.4 s"]


def test_batches_that_ran_out_of_memory_are_named_beside_the_one_that_fits() -> None:
    rehearsal = SanityCheck(eval_batch_size=128, eval_batches_tried=(512, 256, 128))
    assert rehearsal.lines() == [
        "evaluation: one batch of 128 fits; out of memory with 512, 256: set per_device_eval_batch_size=128"
    ]


def test_not_even_one_sample_is_said_so() -> None:
    rehearsal = failed("evaluation", Outcome.OUT_OF_MEMORY, eval_batches_tried=(4, 2, 1))
    assert rehearsal.lines() == ["evaluation: out of memory even with 1 sample"]


def test_a_checkpoint_left_out_says_why() -> None:
    rehearsal = SanityCheck(checkpoint_skipped="31 GB would be more than 20 GB")
    assert rehearsal.lines() == ["checkpoint: not tried: 31 GB would be more than 20 GB"]


def test_every_part_that_failed_has_its_line() -> None:
    assert failed("training", Outcome.OUT_OF_MEMORY).lines() == ["training: out of memory: it broke"]
    assert failed("evaluation").lines() == ["evaluation: crashed: it broke"]
    assert failed("saving").lines() == ["checkpoint: crashed: it broke"]
    assert failed("", Outcome.TIMED_OUT, "not done after 60 s").lines() == ["rehearsal: timed out: not done after 60 s"]


def test_a_rehearsal_survives_json() -> None:
    for rehearsal in (DONE, SanityCheck(), failed("evaluation", eval_batches_tried=(2, 1))):
        assert SanityCheck.from_dict(json.loads(json.dumps(rehearsal.to_dict()))) == rehearsal
