"""The devices of a search, compared: how much slower each is than the others, and which one is left out."""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.device import Device
from autotune.core.errors import SearchFailed
from autotune.executors.pool import JOIN, Ended, Pool
from autotune.probe import Probe
from autotune.probe.order import ANSWER
from autotune.sampler.physics import PhysicsSampler
from autotune.study.measure import measure
from autotune.study.objective import leader
from autotune.study.store import DEVICES, read_trial, reporting_storage
from autotune.study.study import Study

FAULTS, MOST_FAULTS = (Outcome.CRASHED, Outcome.TIMED_OUT), 2
"""What may be a device's fault, and how many such trainings that run elsewhere a device may have before it is left out."""

MOST_LOST = 2
"""Executors that are lost while they run one configuration, after which it counts as crashed."""

DIFFER = 0.03
"""Standard deviation of the logarithm of speeds of devices of one kind: cards of one model differ by 8 % in the mean and up to
22 % (Sinha et al., SC22, arXiv 2208.11035)."""

NOISE, NOISE_DEGREES = 0.02, 3
"""What one process differs from another of the same configuration, and how many degrees of freedom that counts for."""

TOO_DIFFERENT = 0.10
"""Share by which a device differs from the median one from which on it is left out: something is wrong with it."""


def start_baseline(study: Study, pool: Pool, device: str) -> bool:
    """Let a further device measure what another one did: the baseline, or where that does not fit the quickest trial that does.

    Whether it began to; not where there is nothing to compare, or the device has.
    """
    if not pool.is_several or study.space.baseline_problem or pool.width(study.space.baseline) > 1:
        return False
    reference, seen = _repeated(study, pool), study.baselines.get(device)
    if reference is None and study.trials:
        return False
    if seen is not None and seen.number == (reference.number if reference else 0):
        return False
    if reference is not None and device in {reference.measurement.device, *_confirming(study.trials)}:
        return False
    number = 0 if reference is None else reference.number
    configuration = study.space.baseline if reference is None else reference.configuration
    place = DEVICES - list(pool.probes).index(device)
    plan, trials = study.plan, tuple(study.trials[:1])
    seconds = plan.time.cut(math.inf)

    def job(probe: Probe) -> Trial:
        run = _whole(probe)
        measurement = measure(study.folder, plan, trials, run, configuration, place, wish=study.wish, seconds=seconds)
        return Trial(number, configuration, measurement)

    pool.start(device, job, device)
    return True


def _repeated(study: Study, pool: Pool) -> Trial | None:
    """The trial that every device repeats: what the first of them did, also before this search was resumed."""
    able = [trial for trial in study.trials if trial.feasible and pool.width(trial.configuration) == 1]
    if study.repeated is None and able:
        for index, device in enumerate(pool.probes):
            earlier = read_trial(study.probe_folder(DEVICES - index), 0)
            for trial in able:
                if (
                    earlier
                    and earlier.feasible
                    and (earlier.configuration, earlier.measurement.device) == (trial.configuration, device)
                ):
                    study.baselines[device] = replace(earlier, number=trial.number)
        repeated = {trial.number for trial in study.baselines.values()}
        known = [trial for trial in able if trial.number == 0 or trial.number in repeated]
        study.repeated = min(known or able, key=lambda trial: trial.measurement.probe_seconds).number
    return next((trial for trial in able if trial.number == study.repeated), None)


def _confirming(trials: Sequence[Trial]) -> set[str]:
    """Devices that ran what others ran too, in rounds."""
    ran = [{m.device for m in trial.confirmations} for trial in trials if trial.configuration.data_parallel_size == 1]
    return set().union(*(names for names in ran if len(names) > 1))


def _whole(probe: Probe) -> Probe:
    """The probe, which ends none early."""
    return lambda configuration, options: probe(configuration, replace(options, best_so_far=None))


def take_baseline(study: Study, pool: Pool, ended: Ended) -> None:
    """What came of the baseline on a further device."""
    if ended.error is None:
        study.baselines[ended.device] = ended.value
        judge(study, pool)


def raise_without(pool: Pool, seconds: float, waiting: Callable[[], None], check: Callable[[], None]) -> None:
    """Raise SearchFailed where no device is left, and none returns. seconds, waiting, check: as in `Pool.regain`."""
    if not pool.devices and not pool.regain(seconds, waiting, check):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.left_out.items())
        raise SearchFailed(f"No device is left to measure on: {reasons}.", "Run the same command again to resume.")


def lost(configuration: Configuration) -> Measurement:
    """The measurement of a configuration that lost its executors."""
    return Measurement(
        Outcome.CRASHED, "two executors were lost while they ran it", asked=configuration.values, where="executor"
    )


def is_doubted(study: Study, pool: Pool, configuration: Configuration, ended: Ended) -> bool:
    """Whether what crashed or hung on one of several devices is to run on another one before that is believed.

    What does not fail there counts against the device, which is left out after MOST_FAULTS.
    """
    _, measurement = ended.value
    first = study.doubts.pop(ended.key, "")
    if measurement.outcome not in FAULTS:
        study.faults[first] += bool(first)
        if first and study.faults[first] >= MOST_FAULTS:
            _leave_out(study, pool, first, f"{MOST_FAULTS} trainings failed there that ran on another device")
        return False
    if first or pool.width(configuration) > 1 or not {*pool.devices} - {ended.device}:
        return False
    study.doubts[ended.key] = ended.device
    number, confirmation = ended.key[::-1] if isinstance(ended.key, tuple) else (ended.key, 0)
    with reporting_storage(study.folder):
        (study.probe_folder(number, confirmation) / ANSWER).unlink(missing_ok=True)
    return True


def is_suspect(study: Study, device: str) -> bool:
    """Whether so much failed on this device, some of it perhaps elsewhere too, that it gets nothing new to try."""
    open_doubts = [job for job, doubted in study.doubts.items() if doubted == device and job in study.running]
    return study.faults[device] + len(open_doubts) >= MOST_FAULTS


def _leave_out(study: Study, pool: Pool, device: str, why: str) -> None:
    if device in pool.devices and len(pool.devices) > 1:
        pool.left_out[device] = why
        study.notes.append(f"{device} was left out: {why}")


def judge(study: Study, pool: Pool) -> None:
    """Let the sampler know by how much devices differ; leave out what differs too much."""
    if not pool.is_several:
        return
    for device, repeated in study.baselines.items():
        if repeated.measurement.outcome in FAULTS and repeated.number == study.repeated:
            _leave_out(study, pool, device, f"trial {repeated.number}, which ran on another device, failed there")
    # Of a device that may be faulty nothing is believed beforehand: a narrow prior would take half of its difference for noise.
    effects = device_effects(study.trials, study.baselines, faulty=pool.probes)
    if pool.devices and {*pool.devices} <= effects.keys():  # of two that differ nobody knows which is the faulty one
        _leave_out_what_differs(study, pool, effects)
    study.effects = device_effects(study.trials, study.baselines, faulty=pool.left_out)
    if isinstance(study.optuna.sampler, PhysicsSampler):
        study.optuna.sampler.devices = study.effects


def _leave_out_what_differs(study: Study, pool: Pool, effects: Mapping[str, tuple[float, float]]) -> None:
    """Leave out one after the other, the slowest first: several slow ones would make the others look fast."""
    while len(pool.devices) > 1:
        means = sorted((effects[name][0], name) for name in pool.devices)
        middle = median(mean for mean, _ in means) if len(means) > 2 else means[-1][0]
        shares = {name: math.expm1(mean - middle) for mean, name in means}
        name = next((name for name, share in shares.items() if abs(share) > TOO_DIFFERENT), "")
        if not name:
            return
        word = "slower" if shares[name] < 0 else "faster"
        _leave_out(study, pool, name, f"{abs(shares[name]):.0%} {word} than the others (throttled, or shared?)")


def share_reached(study: Study, device: str) -> float:
    """Share of the best trial's speed that its configuration surely (97.5 %) reaches on this device."""
    best = leader(study.trials, study.plan.objective)
    if best is None or best.measurement.device == device:
        return 1.0
    (own, own_sd), (other, other_sd) = (study.effects.get(d, (0.0, DIFFER)) for d in (device, best.measurement.device))
    return math.exp(own - other - 1.96 * math.hypot(own_sd, other_sd))


def device_effects(
    trials: Sequence[Trial], baselines: Mapping[str, Trial], faulty: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Device -> (mean, standard deviation) of the logarithm of its speed, against all devices'.

    Log speed = configuration + device + noise, with a normal prior of the device (standard deviation DIFFER, of faulty ones
    TOO_DIFFERENT) and none of the configuration; fitted to what two devices ran: the baseline's probes, and the confirmation
    rounds.
    """
    groups: dict[Hashable, list[tuple[str, float, float]]] = {}
    probes = [(trial.number, trial.measurement) for trial in baselines.values()]
    probes += [(trial.number, trial.measurement) for trial in trials]
    rounds = [((trial.number, "round"), measured) for trial in trials for measured in trial.confirmations]
    for key, measured in (*probes, *rounds):
        speed = measured.samples_per_second
        if measured.device and JOIN not in measured.device and speed is not None and not measured.ended_early:
            spread = speed.relative_width / 2 / 1.96 if math.isfinite(speed.relative_width) else 0.5
            groups.setdefault(key, []).append((measured.device, math.log(speed.value), spread))
    groups = {key: rows for key, rows in groups.items() if len({device for device, *_ in rows}) > 1}
    names = sorted({device for rows in groups.values() for device, *_ in rows})
    if not names:
        return {}
    columns = [*names, *groups]
    rows = [(device, key, value, own) for key, several in groups.items() for device, value, own in several]
    design = np.zeros((len(rows), len(columns)))
    for index, (device, key, *_) in enumerate(rows):
        design[index, [columns.index(device), columns.index(key)]] = 1.0
    values, own = np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
    weights, noise = np.ones(len(rows)), NOISE
    for _ in range(3):
        # Steps' own intervals count where they are wider than what processes differ by.
        weights = 1 / np.maximum(noise, own) ** 2
        free, *_ = np.linalg.lstsq(design * np.sqrt(weights)[:, None], values * np.sqrt(weights), rcond=None)
        degrees = max(0, len(rows) - len(groups) - len(names) + 1)
        squares = float(np.sum((values - design @ free) ** 2))
        noise = math.sqrt((NOISE_DEGREES * NOISE**2 + squares) / (NOISE_DEGREES + degrees))
    of_devices = [(TOO_DIFFERENT if name in faulty else DIFFER) ** -2 for name in names]
    prior = np.diag([*of_devices, *[1e-9] * len(groups)])
    covariance = np.linalg.inv(design.T * weights @ design + prior)
    fitted = covariance @ (design.T * weights @ values)
    return {name: (float(fitted[i]), math.sqrt(covariance[i, i])) for i, name in enumerate(names)}


def devices_of(study: Study, pool: Pool) -> tuple[Device, ...]:
    """The devices of a search that had several."""
    if not pool.is_several:
        return ()
    effects = device_effects(study.trials, study.baselines, faulty=pool.left_out)
    described = partial(_described, trials=study.trials, effects=effects, left_out=pool.left_out)
    return tuple(map(described, pool.probes))


def _described(
    name: str, trials: Sequence[Trial], effects: Mapping[str, tuple[float, float]], left_out: Mapping[str, str]
) -> Device:
    mean, deviation = effects.get(name, (0.0, DIFFER))
    low, high = (math.exp(mean + sign * 1.96 * deviation) for sign in (-1, 1))
    rounds = {n for t in trials for n, m in zip(t.rounds, t.confirmations, strict=True) if name in m.device.split(JOIN)}
    probed = sum(name in trial.measurement.device.split(JOIN) for trial in trials)
    return Device(name, math.exp(mean), low, high, probed, len(rounds), left_out.get(name, ""))
