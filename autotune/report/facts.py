"""Facts: what a report tells of a search, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core.interval import Interval
from autotune.core.loss_curves import Numerics
from autotune.core.prospect import OptimalityGap
from autotune.core.sanity import SanityCheck
from autotune.core.trial import Trial
from autotune.memory.peak import MemoryPeak
from autotune.report.exports import Answer
from autotune.space.utilization import Utilization


@dataclass(frozen=True)
class Facts:
    """What a report tells, as plain values. best is None where nothing fits.

    answer, model_answer: Hugging Face's fields. variables: of the training process's environment. processes: that the
    launcher starts, one a rank. elsewhere: the same as other tools are told it; None where nothing fits.
    data_answer: how samples become a batch. adapter: PEFT's fields. switches: functions of
    torch.backends.cuda -> what to call them with. prospects: trial number -> what the untried could still win after it.
    estimated_peaks: trial number -> what its memory is for, by the estimate. left_out: what there was no time for.
    utilization: trial number -> how much of the device's arithmetic it uses, where that is known.
    logs: trial number -> the end of what it wrote, of those that failed. warnings: about every number of the study.
    speedup_reason: why there is no speed-up, or why it is open and what would tell. disqualified: faster trials that could not
    win, with the reason. surroundings: what else is known of the device, as (label, text).
    """

    name: str
    trials: Sequence[Trial]
    best: Trial | None
    baseline: Trial | None
    speedup: Interval | None
    speedup_reason: str
    stop_reason: str
    answer: Mapping[str, Any]
    model_answer: Mapping[str, Any]
    variables: Mapping[str, str]
    model: str
    task: str
    device: str
    versions: Mapping[str, str]
    data: str
    objective: str
    limit_bytes: int
    allowed_bytes: int
    ruled_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    disqualified: Sequence[tuple[Trial, str]] = ()
    duplicate_proposals: int = 0
    left_out: Sequence[str] = ()
    device_note: str = ""
    processes: int = 1
    numerics: Numerics | None = None
    rehearsal: SanityCheck | None = None
    verification: Mapping[str, Any] | None = None
    elsewhere: Answer | None = None
    data_answer: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, bool] = field(default_factory=dict)
    prospects: Mapping[int, OptimalityGap] = field(default_factory=dict)
    estimated_peaks: Mapping[int, MemoryPeak] = field(default_factory=dict)
    utilization: Mapping[int, Utilization] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)
    surroundings: Sequence[tuple[str, str]] = ()
