"""Slot: identity of a measurement within a study."""

from dataclasses import dataclass
from enum import StrEnum


class SlotKind(StrEnum):
    """Kind of a measurement."""

    TRIAL = "trial"
    REFERENCE = "reference"
    DEVICE = "device"


@dataclass(frozen=True)
class Slot:
    """One measurement of a study: its key for the job, the folder and the result.

    TRIAL: a trial's probe, or one of its confirmation rounds. REFERENCE: the training in a round that the losses are compared
    with, if no trial is this training. DEVICE: another device's measurement repeated on this one, to compare the two.
    """

    number: int = 0  #: of the trial, 0 the baseline; or the place of the device among several; 0 of the reference
    round: int = 0  #: confirmation round, from 1; 0: a probe
    kind: SlotKind = SlotKind.TRIAL
