"""Warnings: one for all of a kind, with the range of its numbers."""

import json

import pytest

from autotune.core.warning import ResultWarning, WarningKind, merged

KINDS = {
    "cores": 1.7,
    "bytes": 2**30,
    "throttles": 3,
    "fall": 0.2,
    "mhz": 1500,
    "temperature_c": 89,
    "limit_c": 90,
    "steps": 2,
    "width": 0.7,
    "graphs": 1,
    "change": 0.1,
    "learning": 10,
    "weights": 20,
}
"""All numbers that a warning may have."""


def busy(cores: float) -> ResultWarning:
    return ResultWarning(WarningKind.OTHER_PROCESSES, {"cores": cores})


@pytest.mark.parametrize("kind", WarningKind)
def test_every_kind_has_a_text_and_survives_json(kind: WarningKind) -> None:
    warning = ResultWarning(kind, KINDS, "blender (7)")
    assert warning.text
    assert ResultWarning.from_dict(json.loads(json.dumps(warning.to_dict()))) == warning


def test_warnings_that_differ_in_their_numbers_become_one_with_the_range() -> None:
    swapped = ResultWarning(WarningKind.SWAPPED, {"bytes": 2**30})
    found = merged([busy(1.9), busy(1.7), swapped, busy(1.8), swapped])
    assert [str(warning) for warning in found] == [
        "other processes used 1.7 to 1.9 cores meanwhile",
        "the machine swapped 1.00 GiB meanwhile",
    ]
    assert merged([*found, busy(2.5)])[0].text == "other processes used 1.7 to 2.5 cores meanwhile"
    assert merged([busy(1.71), busy(1.72)])[0].text == "other processes used 1.7 cores meanwhile"


def test_another_process_and_another_trial_s_are_warnings_of_their_own() -> None:
    one, two = (ResultWarning(WarningKind.SHARED_DEVICE, detail=name) for name in ("blender (7)", "python (8)"))
    of_baseline = ResultWarning(WarningKind.SHARED_DEVICE, detail="blender (7)", of="baseline")
    assert merged([one, two, of_baseline]) == (one, two, of_baseline)
    assert of_baseline.text == "baseline: another process on the device: blender (7)"


def test_numbers_are_counted() -> None:
    assert ResultWarning(WarningKind.FEW_STEPS, {"steps": 1}).text == "only 1 timed step"
