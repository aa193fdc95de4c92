"""The space `full` on a CPU, for real: odd corners of it run or say why they cannot, and so does whatever is left out."""

from pathlib import Path

import pytest

import autotune
from autotune.core import Outcome, Trial
from autotune.space.file import open_space
from autotune.space.settings import SETTINGS
from tests.hurry import hurry

FINE = {Outcome.COMPLETED, Outcome.UNSUPPORTED, Outcome.OUT_OF_MEMORY, Outcome.NON_FINITE_LOSS}


@pytest.mark.nightly
def test_no_corner_of_the_full_space_crashes_and_what_is_left_out_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    result = autotune.search(
        "bert-mini",
        8,
        sequence_length=16,
        device="cpu",
        space="full",
        fix=["compile=none"],  # a minute each on a CPU
        n_trials=6,
        sampler="random",  # no rule that keeps to what is likely to win
        seed=1,
        no_history=True,
        output_dir=str(tmp_path),
    )
    ended = {trial.number: (trial.measurement.outcome, trial.measurement.reason) for trial in result.trials}
    assert len(ended) == 6
    assert all(outcome in FINE for outcome, _ in ended.values()), ended
    assert all(reason for outcome, reason in ended.values() if outcome is not Outcome.COMPLETED), ended
    changed = {name for trial in result.trials for name in SETTINGS if differs(trial, result.baseline, name)}
    assert len(changed) >= 5, "these are no corners"
    assert all(value.reason.text.strip() for value in result.ruled_out)
    # Whatever the file names can be proposed, was fixed, or is ruled out with its reason.
    left_out = {(value.setting, value.value) for value in result.ruled_out}
    assert {("precision", "fp16"), ("attention", "flash_attention_2"), ("zero", "3_offload_all")} <= left_out
    assert {name for name, _ in left_out} <= set(open_space("full").values)


def differs(trial: Trial, baseline: Trial, name: str) -> bool:
    return trial.configuration.values.get(name) != baseline.configuration.values.get(name)
