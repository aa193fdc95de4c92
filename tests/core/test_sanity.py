"""What a sanity check came to, in words and on disk."""

import json

import pytest

from autotune.core.measurement import Outcome
from autotune.core.sanity import SanityCheck, SanityProblem
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
    return SanityCheck(**{"problems": (SanityProblem(where, outcome, reason),), **facts})


LINES: list[tuple[SanityCheck, list[str]]] = [
    (DONE, ["evaluation: one batch of 8 fits (peak 540 MiB)", "checkpoint: 62 MiB in 0.4 s"]),
    (
        SanityCheck(eval_batch_size=128, eval_batches_tried=(512, 256, 128)),
        ["evaluation: one batch of 128 fits; out of memory with 512, 256: set per_device_eval_batch_size=128"],
    ),
    (
        failed("evaluation", Outcome.OUT_OF_MEMORY, eval_batches_tried=(4, 2, 1)),
        ["evaluation: out of memory even with 1 sample"],
    ),
    (SanityCheck(checkpoint_skipped="too large"), ["checkpoint: not tried: too large"]),
    (failed("training", Outcome.OUT_OF_MEMORY), ["training: out of memory: it broke"]),
    (failed("evaluation"), ["evaluation: crashed: it broke"]),
    (failed("saving"), ["checkpoint: crashed: it broke"]),
    (failed("", Outcome.TIMED_OUT, "not done after 60 s"), ["sanity check: timed out: not done after 60 s"]),
    (SanityCheck(), []),
    (
        SanityCheck(eval_batch_size=8, outputs_bytes=3 * 2**30, outputs_left_bytes=2**30, accumulation_helps=True),
        [
            "evaluation: one batch of 8 fits",
            "evaluation: the outputs of all rows, which compute_metrics gets, need 3.00 GiB, and 1.00 GiB are left: "
            "reduce them in preprocess_logits_for_metrics or set eval_accumulation_steps",
        ],
    ),
    (
        SanityCheck(evaluation_unchecked="your Trainer has no eval_dataset"),
        ["evaluation: yours was not checked: your Trainer has no eval_dataset"],
    ),
]


@pytest.mark.parametrize(("check", "lines"), LINES)
def test_every_part_has_its_line_and_survives_json(check: SanityCheck, lines: list[str]) -> None:
    assert check.lines() == lines
    assert SanityCheck.from_dict(json.loads(json.dumps(check.to_dict()))) == check
