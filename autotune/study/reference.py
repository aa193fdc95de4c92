"""Reference of the losses: what the trials are compared with, how exact it is, and what training it costs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autotune.core import Configuration, Measurement, Outcome, Trial, Value
from autotune.core.loss_curves import LEAST_STEPS
from autotune.core.note import Note, NoteKind
from autotune.judge.dominance import implied_by
from autotune.judge.standing import Standing
from autotune.probe.order import LOSSES
from autotune.space.settings.precision import ALIKE
from autotune.study.pacing import round_seconds
from autotune.study.plan import Plan

NAMES = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16 autocast"}
"""Precision of a reference -> its name, the most exact first: all keep the weights in float32."""

_ENDS = {Outcome.OUT_OF_MEMORY: NoteKind.LOSSES_NEED_MEMORY, Outcome.TIMED_OUT: NoteKind.LOSSES_NEED_TIME}


def references(standing: Standing, able: Collection[str] = NAMES) -> dict[str, Configuration]:
    """Precision -> what the others may be compared with, the most exact first.

    The baseline in that precision, or, if it does not run, the leader's sizes and settings with the baseline's optimizer.
    Only what is more exact than that is itself.

    Empty if that trained in fp32 and is a trial itself. able: precisions that work on the device.
    """
    baseline = standing.trials[0]
    if baseline.feasible:
        model, configuration = baseline, baseline.configuration
    elif (best := standing.leader) is not None:
        own = {name: value for name, value in baseline.configuration.settings if name == "optimizer"}
        model, configuration = best, _with(best.configuration, own)
    else:
        return {}
    trained = _precision(model).replace("fp16", "bf16")  # neither is more exact
    if baseline.feasible and "fp32" in (trained, configuration.values.get("precision")):
        return {}
    more_exact = list(NAMES)[: list(NAMES).index(trained)] if trained in NAMES else list(NAMES)
    able = {*able, "fp32"}
    return {name: in_precision(configuration, name) for name in more_exact or ["fp32"] if name in able}


def in_precision(configuration: Configuration, precision: str) -> Configuration:
    """The configuration in this precision, also if its space leaves that to the user's arguments, and not compiled."""
    plain = {"compile": "none"} if "compile" in configuration.values else {}  # compiled, fp32 would run in TF32
    return _with(configuration, {"precision": precision, **plain})


def _with(configuration: Configuration, values: Mapping[str, Value]) -> Configuration:
    return replace(configuration, settings=tuple({**dict(configuration.settings), **values}.items()))


def _precision(trial: Trial) -> str:
    """The precision that it trained in, as read back from its probe."""
    return str(trial.measurement.settings.get("precision") or trial.configuration.values.get("precision", "fp32"))


def precision_of(reference: Measurement) -> str:
    """The precision that a reference's training was ordered in."""
    precision = str(reference.asked.get("precision", "fp32"))
    return precision if precision in NAMES else "fp32"


def next_reference(
    plan: Plan, standing: Standing, trainings: Mapping[int, Measurement], products: Mapping[str, float]
) -> Configuration | None:
    """The next training of the reference; None if a trial is the reference itself, or nothing more exact fits.

    That is the most exact one that fits: after one that ran out of memory the next that needs less, after one that took too
    long the next. Instead of fp32 it is TF32 if fp32 is foreseen to take longer than a rival's round. trainings: round -> what
    the reference did in it. products: precision -> floating-point operations / second of the device, as far as they are known.
    """
    left = references(standing, plan.precisions)
    if (last := _last(trainings)) is not None:
        tried = precision_of(last)
        if last.feasible:
            return left.get(tried)
        if (end := _end_of(last)) not in _ENDS:
            return None
        spent = "tf32" if tried == "fp32" and end is Outcome.OUT_OF_MEMORY else tried  # they need the same memory
        left = {name: left[name] for name in list(NAMES)[list(NAMES).index(spent) + 1 :] if name in left}
    if {"fp32", "tf32"} <= left.keys() and "tf32" in products:
        rival = _model(standing)
        if rival and _seconds(rival, "fp32", products) > round_seconds(rival, plan.is_cpu):
            del left["fp32"]
    return next(iter(left.values()), None)


def reference_seconds(
    plan: Plan,
    standing: Standing,
    trainings: Mapping[int, Measurement],
    products: Mapping[str, float],
    rounds: int = 1,
) -> float:
    """Seconds that the reference's trainings are expected to take in the next rounds; 0 if a trial is the reference itself."""
    if not standing.trials or not rounds or (rival := _model(standing)) is None:
        return 0.0
    wanted = next_reference(plan, standing, trainings, products)
    answer = None if wanted is None else implied_by(wanted, standing.trials)
    if wanted is None or (answer and (whole_rounds(answer) or not answer.feasible)):
        return 0.0
    done = [measured for measured in trainings.values() if measured.feasible]
    seconds = done[-1].probe_seconds if done else _seconds(rival, str(wanted.values["precision"]), products)
    if is_once(plan, seconds, rival):
        return 0.0 if done else seconds
    return rounds * seconds


def is_once(plan: Plan, seconds: float, rival: Trial) -> bool:
    """True if the reference trains in one round only: on a GPU, and if it takes longer than a rival's round.

    Each further round makes the comparison surer, as it has other weights and samples.
    """
    return not plan.is_cpu or seconds > round_seconds(rival, plan.is_cpu)


def is_wanted(plan: Plan, standing: Standing, trainings: Mapping[int, Measurement], round_number: int) -> bool:
    """True if this round is to have the reference's losses.

    Always if it trains in every round, else for a trial that shares none with it. Rounds of composed steps have no losses.
    """
    if round_number in rounds_unreferred(standing.trials, trainings):
        return True
    completed = [number for number, measured in trainings.items() if measured.feasible]
    rival = _model(standing)
    if rival is None or not completed or round_number in completed:
        return False
    ran = any(round_number in whole_rounds(trial) for trial in standing.trials)
    return ran and not is_once(plan, trainings[max(completed)].probe_seconds, rival)


def rounds_unreferred(trials: Sequence[Trial], trainings: Mapping[int, Measurement]) -> set[int]:
    """The first round with losses of each trial that shares none with the reference."""
    completed = {number for number, measured in trainings.items() if measured.feasible}
    rounds = [whole_rounds(trial) for trial in trials if trial.confirmed]
    return {min(whole) for whole in rounds if whole and not whole & completed}


def whole_rounds(trial: Trial) -> set[int]:
    """The rounds that give losses."""
    pairs = zip(trial.rounds, trial.confirmations, strict=True)
    return {number for number, measured in pairs if measured.feasible and not measured.is_composed}


def loss_steps(trials: Sequence[Trial], round_number: int) -> int:
    """Steps of the reference in this round: as many as its rivals' losses, at most those of LOSSES."""
    rounds = [dict(zip(trial.rounds, trial.confirmations, strict=True)) for trial in trials]
    longest = max((len(measured[round_number].losses) for measured in rounds if round_number in measured), default=0)
    most = LOSSES.untimed_most + LOSSES.timed_most
    return max(LEAST_STEPS, min(longest or most, most))


def why_none(standing: Standing, trainings: Mapping[int, Measurement]) -> Note:
    """The reason for which the reference's losses are missing, as `fp32 needs too much memory`."""
    if (last := _last(trainings)) is None:
        return Note(NoteKind.LOSSES_NOT_BEGUN if references(standing) else NoteKind.LOSSES_NOT_POSSIBLE)
    name = NAMES[precision_of(last)]
    if (end := _end_of(last)) in _ENDS:
        return Note(_ENDS[end], detail=name)
    return Note(NoteKind.LOSSES_FAILED, detail=f"{name} ended as {end}")


def _end_of(measured: Measurement) -> Outcome:
    """Outcome of a measurement; out of memory if it completed with more than is allowed."""
    is_above = measured.outcome is Outcome.COMPLETED and not measured.feasible
    return Outcome.OUT_OF_MEMORY if is_above else measured.outcome


def _last(trainings: Mapping[int, Measurement]) -> Measurement | None:
    """A training of the reference that completed, else the least exact one that was tried, or None."""
    tried = sorted(trainings.values(), key=lambda measured: (measured.feasible, [*NAMES].index(precision_of(measured))))
    return tried[-1] if tried else None


def _model(standing: Standing) -> Trial | None:
    """The trial that the reference is made from."""
    baseline = standing.trials[0]
    return baseline if baseline.feasible else standing.leader


def _seconds(rival: Trial, precision: str, products: Mapping[str, float]) -> float:
    """Seconds of a training for the losses in this precision: steps that last as much longer as products of matrices do."""
    own = ALIKE.get(_precision(rival), _precision(rival))
    slower = products[own] / products[precision] if {own, precision} <= products.keys() else 1.0
    step_s = max(1.0, slower) * (rival.final.step_time_s or 0.0)
    least, most = LEAST_STEPS * step_s, (LOSSES.untimed_most + LOSSES.timed_most) * step_s
    return rival.measurement.starting_s + max(least, min(most, LOSSES.seconds))
