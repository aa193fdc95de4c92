"""Plan of a search, and its progress events."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from autotune.core import Configuration, Environment, Interval, Measurement, Outcome, Trial, TuningRequest
from autotune.core.request import CONFIRMATION_ROUNDS
from autotune.core.time_limit import TimeLimit
from autotune.judge.constants import SAME_SPEED
from autotune.judge.objective import speed
from autotune.judge.standing import Standing


@dataclass(frozen=True)
class Plan:
    """Limits of a search. n_trials: probes in all, the baseline's among them (see `probes`). time: of the whole command.

    allowed_bytes: what probes are held to. margin: the share by which nothing untried may be able to beat the best for the
    search to end. training_steps: of the run it is for.
    confirmation_rounds: pairs of measurements of the fastest and of the baseline that a speed-up needs; 0: nothing is
    measured again.
    is_cpu: true if the device is a CPU; precisions: names of the precisions that work on it.
    keep_numerics: what is learned stays as the user's settings have it.
    no_risk: nothing is probed that may not fit, once something does. require_parity: what is not shown to train like fp32
    cannot win; allow_loss_difference: what is shown not to may win.
    """

    n_trials: int
    objective: str
    allowed_bytes: int
    time: TimeLimit = field(default_factory=TimeLimit)
    probe_timeout_s: float | None = None
    sampler: str = "physics"
    seed: int = 0
    confirmation_rounds: int = CONFIRMATION_ROUNDS
    margin: float = SAME_SPEED
    training_steps: int | None = None
    no_risk: bool = False
    keep_numerics: bool = False
    require_parity: bool = False
    allow_loss_difference: bool = False
    is_cpu: bool = True
    precisions: Collection[str] = ("fp32", "bf16")

    def probes(self, trials: Sequence[Trial]) -> int:
        """Number of probes that the search may run: n_trials, and one more for each trial that ran out of memory in a round.

        Its probe was too short to tell that it does not fit. At most n_trials // 2 more.
        """
        outcomes = ([measured.outcome for measured in trial.confirmations] for trial in trials[1:])
        return self.n_trials + min(self.n_trials // 2, sum(Outcome.OUT_OF_MEMORY in rounds for rounds in outcomes))

    def score(self, measurement: Measurement | None) -> float:
        """See `score`."""
        return score(measurement, self.objective)


def score(measurement: Measurement | None, objective: str) -> float:
    """The value of a measurement for Optuna: samples or tokens / second; 0 for None and for what does not fit."""
    rate = speed(measurement, objective) if measurement and measurement.feasible else None
    return rate.value if rate else 0.0


def plan_of(request: TuningRequest, environment: Environment, time: TimeLimit, allowed_bytes: int) -> Plan:
    """The plan of a search with this request on this device."""
    return Plan(
        n_trials=request.n_trials,
        objective=request.objective,
        allowed_bytes=allowed_bytes,
        time=time,
        probe_timeout_s=request.probe_timeout_s,
        sampler=request.sampler,
        seed=request.seed,
        confirmation_rounds=request.confirmation_rounds,
        margin=request.margin,
        training_steps=request.training_steps,
        no_risk=request.no_risk,
        keep_numerics=request.keep_numerics,
        require_parity=request.require_parity,
        allow_loss_difference=request.allow_loss_difference,
        is_cpu=environment.is_cpu,
        precisions=[precision for precision, problem in environment.precisions.items() if problem is None],
    )


class ProgressKind(StrEnum):
    """Kind of a progress."""

    PREPARING = "preparing"
    RESUMED = "resumed"
    PROBING = "probing"
    TRIAL = "trial"  # one has ended
    CONFIRMING = "confirming"  # one is measured again
    CONFIRMED = "confirmed"  # one was measured again
    FINISHING = "finishing"
    STOPPING = "stopping"
    DONE = "done"


@dataclass(frozen=True)
class Progress:
    """Something that happened, for those who watch.

    message: what is done while preparing and finishing, why a trial is measured again, and that other devices still
    measure if one has ended. number, configuration: of the trial that
    is measured. trial: the one that ended.
    probes_left: of the budget. seconds_left: seconds of the budget's time; None without a timeout. seconds_to_go: that the
    search is expected to take still, with all the probes that are left; None if that is unknown. max_gain: share by which
    something untried could still beat the best, before what is probed now; None: not known. folder: where the study lies; None
    before it is open.
    """

    kind: ProgressKind  #: of event
    standing: Standing
    number: int | None = None
    configuration: Configuration | None = None
    trial: Trial | None = None
    probes_left: int = 0
    seconds_left: float | None = None
    seconds_to_go: float | None = None
    max_gain: float | None = None
    message: str = ""
    folder: Path | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials known so far."""
        return self.standing.trials

    @property
    def best(self) -> Trial | None:
        """The best so far, if that is proven; None before, and while it is the user's own settings."""
        best = self.standing.answer
        return best if best not in (None, self.standing.compared) and self.standing.is_shown(best) else None

    @property
    def fastest(self) -> Trial | None:
        """The fastest so far, which may be the user's own settings; None if another one is the best, or if none fits."""
        return None if self.best else self.standing.fastest

    def speedup_of(self, trial: Trial | None) -> Interval | None:
        """Speed of a trial divided by that of the user's settings; None if that is unknown now."""
        return self.standing.displayed_gain(trial)


Watch = Callable[[Progress], None]
