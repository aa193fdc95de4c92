"""Slot: which measurement of a study one is."""

from dataclasses import dataclass
from enum import StrEnum


class SlotKind(StrEnum):
    """Whose measurement it is."""

    TRIAL = "trial"
    REFERENCE = "reference"
    DEVICE = "device"


@dataclass(frozen=True)
class Slot:
    """One measurement of a study, by which its job, its folder and its result are found.

    TRIAL: a trial's probe, or one of its confirmation rounds. REFERENCE: the training in a round that the losses are compared
    with, if no trial is that. DEVICE: what another device measured too, repeated on this one so that they can be compared.
    """

    number: int = 0  #: of the trial, 0 the baseline; or the place of the device among several; 0 of the reference
    round: int = 0  #: confirmation round, from 1; 0: a probe
    kind: SlotKind = SlotKind.TRIAL
