"""Study: what is proposed next, and what Optuna's record holds of it."""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import optuna
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.interrupt import StopRequest
from autotune.core.loss_curves import Numerics
from autotune.core.prospect import OptimalityGap
from autotune.core.units import finite
from autotune.sampler.acquisition import P_FIT_CERTAIN, RISKS, Proposal
from autotune.sampler.optuna_samplers import fixed_sampler
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.physics import RISKY, PhysicsSampler, WarmStart, to_attrs
from autotune.space.dominance import implied_by
from autotune.space.search_space import SearchSpace
from autotune.study.objective import value
from autotune.study.pacing import time_for_a_probe
from autotune.study.plan import Plan
from autotune.study.reference import reference_seconds
from autotune.study.stopping import nothing_to_win, out_of_budget
from autotune.study.store import Damage, keep_prospect, probe_folder

PROBES = "further probes"
"""What a search leaves out whose time is over before its other budget."""

KNOWN_IN_A_ROW = 200
"""Proposals in a row that earlier trials answer, after which everything counts as measured."""

WALKED_THROUGH = 5000
"""Configurations up to which a space is walked through to see whether anything is left."""

CORE_SHARE = 0.5
"""Of the probes of a search, for the core settings of a space that names some."""


@dataclass
class Study:
    """An open study: its folder (locked), Optuna's record, and the trials so far, in the order of their numbers.

    max_gain: share by which something untried could still beat the best, at the last proposal; None where the sampler
    does not know. references: round -> what the losses' reference did in it, if that is no trial itself. numerics: the losses
    of all rounds so far, compared. racing: numbers of the trials of the round that runs. pace: seconds that each measurement of
    this run took, repetitions included, and those of its probe alone. wish: the user's request to stop.
    risk: how likely the last proposal fits, where it may not; None: it does. running: number -> what is probed now;
    again: (number, device) of those whose executor was lost; unlikely: those that may not fit. baselines: of several
    devices -> the trial that it repeated to be compared; repeated: its number. losses: job -> executors that were lost while
    they ran it, half of one where it was the last. doubts: job -> the device on which it failed, until another one ran it;
    faults: device -> jobs that failed there and nowhere else. effects: device -> (mean, standard deviation) of the logarithm
    of its speed, against all devices'. notes: what else is to be said of the devices. damage: files of this folder that could
    not be read. lost: number -> configuration of trials that are measured again for it; waiting: the other trials, until a
    baseline among these is measured.
    """

    folder: Path
    optuna: optuna.Study
    space: SearchSpace
    plan: Plan
    trials: list[Trial] = field(default_factory=list)
    queue: list[Configuration] = field(default_factory=list)
    duplicate_proposals: int = 0
    max_gain: float | None = None
    references: dict[int, Measurement] = field(default_factory=dict)
    numerics: Numerics | None = None
    racing: Sequence[int] = ()
    pace: list[tuple[float, float]] = field(default_factory=list)
    wish: StopRequest = field(default_factory=StopRequest)
    left_out: list[str] = field(default_factory=list)
    running: dict[int, "Asked"] = field(default_factory=dict)
    again: list[tuple[int, str]] = field(default_factory=list)
    unlikely: set[int] = field(default_factory=set)
    baselines: dict[str, Trial] = field(default_factory=dict)
    repeated: int | None = None
    losses: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    doubts: dict[Hashable, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    effects: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: Damage = field(default_factory=dict)
    lost: dict[int, Configuration] = field(default_factory=dict)
    waiting: list[Trial] = field(default_factory=list)
    risk: float | None = None
    warm_start: WarmStart = field(init=False)

    def __post_init__(self) -> None:
        self.warm_start = WarmStart(self.plan.allowed_bytes)

    def reference_seconds(self, rounds: int = 1) -> float:
        """How long the trainings of the losses' reference are expected to take in so many next rounds."""
        return reference_seconds(self.plan, self.trials, self.references, self.products, rounds)

    @property
    def products(self) -> Mapping[str, float]:
        """Precision -> floating-point operations / second of the device, where they are known."""
        return self.warm_start.arithmetic.products

    def probe_folder(self, number: int, confirmation: int = 0) -> Path:
        """Where a trial's files go."""
        return probe_folder(self.folder, number, confirmation)


def set_warm_start(study: Study, warm_start: WarmStart) -> None:
    """Let the sampler `physics` propose from this, with the study's plan."""
    plan, sampler = study.plan, study.optuna.sampler
    study.warm_start = replace(
        warm_start,
        objective=plan.objective,
        margin=plan.margin,
        training_steps=plan.training_steps,
        core_probes=int(CORE_SHARE * plan.n_trials),
    )
    if isinstance(sampler, PhysicsSampler):
        sampler.knowledge = study.warm_start


# Asking ------------------------------------------------------------------------------------------------------


Asked = tuple[int, optuna.Trial, Configuration]

BUSY = "a probe that may not fit runs already"
"""Why nothing is proposed now although there is something: two at the edge of the memory would both run out of it."""


def ask(study: Study) -> tuple[Asked | None, str]:
    """(the next configuration that nothing answers for yet, the queue's first; or None and why the search ends).

    A proposal that was measured or ruled out is recorded, marked and not counted. What untried configurations could still win
    is written next to the last trial.
    """
    out_of_time = bool(study.trials) and not time_for_a_probe(study.plan, study.trials, study.reference_seconds())
    sampler, over = study.optuna.sampler, out_of_budget(study.plan, study.trials, out_of_time)
    choice: Proposal | None = None
    if isinstance(sampler, PhysicsSampler) and (over or not study.queue):
        risks = 0 if study.plan.no_risk or study.running else RISKS
        choice = sampler.propose(study.optuna, trials=study.trials, risks=risks)
        if study.trials:
            prospect = OptimalityGap(choice.max_gain, choice.max_gain_if_fits, choice.untried)
            keep_prospect(study.folder, study.trials[-1].number, prospect)
    study.max_gain = finite(choice.max_gain_if_fits) if choice else None
    if over:
        stop_reason = nothing_to_win(study.plan, study.trials, choice, study.space.size) if choice else ""
        study.left_out += [PROBES] if out_of_time and not stop_reason else []
        return None, stop_reason or over
    while study.queue:
        configuration = study.queue.pop(0)
        if implied_by(configuration, study.trials) is None and configuration not in probed_now(study):
            return begin(study, propose(study, configuration), configuration), ""
    if choice is not None:
        if stop_reason := nothing_to_win(study.plan, study.trials, choice, study.space.size):
            return None, stop_reason
        assert choice.configuration is not None
        if study.unlikely and choice.fits < P_FIT_CERTAIN:
            return None, BUSY
        running = propose(study, choice.configuration)
        study.risk = choice.fits if choice.risky else None
        if study.risk is not None:
            running.set_user_attr(RISKY, study.risk)
        begun = begin(study, running, choice.configuration)
        if choice.fits < P_FIT_CERTAIN:
            study.unlikely.add(begun[0])
        return begun, ""
    if _all_known(study):
        return None, _all_is_known(study)
    for _ in range(KNOWN_IN_A_ROW):
        running = propose(study)
        configuration = configuration_of(study.space, running.params)
        answer = implied_by(configuration, study.trials)
        if configuration in probed_now(study):
            with contextlib.suppress(RuntimeError):  # brute force, as in _finish
                study.optuna.tell(running, state=TrialState.FAIL)
            continue
        if answer is None and configuration in study.space:
            return begin(study, running, configuration), ""
        running.set_user_attr("answered_by", answer.number if answer else "outside --only")
        same = answer is not None and answer.configuration == configuration and answer.measurement.feasible
        _finish(study, running, answer.measurement if same and answer else None)
        study.duplicate_proposals += 1
    return None, _all_is_known(study)


def propose(study: Study, configuration: Configuration | None = None) -> optuna.Trial:
    """A new trial of the sampler's choice, or of this configuration.

    Not by Optuna's own queue: what waits there when a search is killed would come before what was interrupted.
    """
    if configuration is None:
        return study.optuna.ask(distributions(study.space))
    sampler = study.optuna.sampler
    study.optuna.sampler = fixed_sampler(parameters(study.space, configuration), sampler)
    try:
        return study.optuna.ask(distributions(study.space))
    finally:
        study.optuna.sampler = sampler


def begin(study: Study, running: optuna.Trial, configuration: Configuration) -> Asked:
    """Mark a proposal as a trial of ours, with its number: what is measured again keeps its own."""
    records = [record.user_attrs for record in study.optuna.get_trials(deepcopy=False)]
    taken = {attributes.get("number") for attributes in records if not attributes.get("interrupted")}
    number = next(
        (number for number, lost in study.lost.items() if lost == configuration),
        next(number for number in range(len(taken) + 1) if number not in taken),
    )
    study.lost.pop(number, None)
    running.set_user_attr("configuration", configuration.to_dict())
    running.set_user_attr("number", number)  # last: whoever reads a number finds a configuration
    return number, running, configuration


def risk_notes(study: Study) -> list[str]:
    """What was tried although it might not fit."""
    attributes = [record.user_attrs for record in study.optuna.get_trials(deepcopy=False)]
    return [
        f"trial {known['number']} was tried although it might not fit ({known[RISKY]:.0%} likely to; --no-risk leaves such out)"
        for known in attributes
        if RISKY in known and "number" in known
    ]


def _all_is_known(study: Study) -> str:
    """What is true when nothing new is proposed: the whole space was walked through, or only asked about in vain."""
    if study.space.size <= WALKED_THROUGH:
        return "all configurations have been measured or ruled out"
    return f"{KNOWN_IN_A_ROW} proposals in a row were measured or ruled out already"


def _all_known(study: Study) -> bool:
    """Whether the trials answer for every configuration of a space small enough to walk through."""
    if study.space.size > WALKED_THROUGH:
        return False
    now = probed_now(study)
    return all(implied_by(configuration, study.trials) or configuration in now for configuration in study.space)


def probed_now(study: Study) -> list[Configuration]:
    """What is probed now."""
    return [configuration for _, _, configuration in study.running.values()]


# Telling -----------------------------------------------------------------------------------------------------


def tell(study: Study, running: optuna.Trial, configuration: Configuration, measurement: Measurement) -> None:
    """What came of a trial: FAIL for a crash, else COMPLETE with its value, its constraint, and what it taught."""
    running.set_user_attr("outcome", measurement.outcome.value)
    running.set_user_attr("ended_early", measurement.ended_early)
    for name, attribute in to_attrs(configuration, measurement).items():
        running.set_user_attr(name, attribute)
    if measurement.outcome is Outcome.CRASHED:
        with contextlib.suppress(RuntimeError):  # brute force, as in _finish
            study.optuna.tell(running, state=TrialState.FAIL)
    else:
        _finish(study, running, measurement)


def _finish(study: Study, running: optuna.Trial, measurement: Measurement | None) -> None:
    """Tell COMPLETE with a value and the one constraint; the worst of both for no measurement."""
    plan = study.plan
    worst = float(plan.memory_limit_bytes) if plan.objective == "memory" else 0.0
    score = value(measurement, plan.objective, plan.memory_limit_bytes) if measurement else worst
    if measurement and plan.objective != "memory":  # as on a device of mean speed
        score /= math.exp(study.effects.get(measurement.device, (0.0, 0.0))[0])
    running.set_constraint("fits", measurement.fits if measurement else 1.0)
    # Brute force stops Optuna's own loop once it has seen all; ours asks it.
    with contextlib.suppress(RuntimeError):
        study.optuna.tell(running, score, skip_if_finished=True)
