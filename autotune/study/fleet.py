"""Fleet: the devices of a search, what runs on them, how much slower each is than the others, and which one is left out."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.device import Device, LeftOut, LeftOutKind
from autotune.core.errors import DevicesAway
from autotune.core.measurement import JOIN
from autotune.core.slot import Slot, SlotKind
from autotune.core.units import format_seconds
from autotune.executors.pool import RETURN_S, Ended, Pool, Work
from autotune.sampler.constants import DIFFER
from autotune.sampler.optuna_samplers import NO_EFFECTS, DeviceEffects
from autotune.space.search_space import SearchSpace
from autotune.study.job import Run
from autotune.study.ledger import Ledger

FAULTS, MOST_FAULTS = (Outcome.CRASHED, Outcome.TIMED_OUT), 2
"""Outcomes that may be a device's fault, and the number of such trainings that run elsewhere after which it is left out."""

MOST_LOST = 2
"""Executors that are lost while they run one configuration, after which it counts as crashed."""

NOISE, NOISE_DEGREES = 0.02, 3
"""Difference between two processes of the same configuration, and the number of degrees of freedom that it counts for."""

TOO_DIFFERENT = 0.10
"""Share by which a device differs from the median one from which on it is left out: something is wrong with it."""


class Fleet:
    """The devices of a search: what runs on them, and which of them is to be believed.

    pool: it starts jobs under their slots.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._jobs: dict[Slot, Run] = {}
        self._losses: dict[Slot, float] = {}  # executors that were lost with a job, half of one if it was the last
        self._lost_on: dict[Slot, str] = {}
        self._doubts: dict[Slot, str] = {}  # device on which a job failed, until another one ran it
        self._faults: Counter[str] = Counter()  # jobs that failed there and nowhere else

    @property
    def jobs(self) -> list[Run]:
        """The running jobs."""
        return [*self._jobs.values()]

    @property
    def begun(self) -> set[int]:
        """Numbers of the trials whose first measurement runs."""
        return {job.slot.number for job in self.jobs if job.slot.kind is SlotKind.TRIAL and not job.slot.round}

    def start(self, job: Run, work: Work) -> None:
        """Let the job's idle devices begin."""
        self._jobs[job.slot] = job
        self.pool.start(job.slot, work, *job.devices)

    def wait(self) -> tuple[Run, Ended]:
        """The job that ends next, and how."""
        ended = self.pool.wait()
        job = next(job for slot, job in self._jobs.items() if slot == ended.key)
        del self._jobs[job.slot]
        return job, ended

    def accept(self, job: Run, device: str, measurement: Measurement | None) -> Measurement | None:
        """The measurement of a job that ended, a crash if it lost a second executor.

        None if another device is to run it first, after a lost executor or a crash that may be the device's.

        device: the first one that ran it; measurement: None if that was lost.
        """
        slot = job.slot
        if measurement is not None:
            return None if self._is_doubted(job, device, measurement) else measurement
        self._lost_on[slot] = device
        # What all are lost with may be their network.
        self._losses[slot] = self._losses.get(slot, 0.0) + (1.0 if self.pool.devices else 0.5)
        return lost(job.configuration) if self._losses[slot] >= MOST_LOST else None

    def avoided(self, slot: Slot) -> str:
        """The device on which this job was lost or failed; empty for none."""
        return self._doubts.get(slot) or self._lost_on.get(slot, "")

    def _is_doubted(self, job: Run, device: str, measurement: Measurement) -> bool:
        """True if what crashed or hung on one of several devices is to run on another one before that is believed.

        What does not fail there counts against the device, which is left out after MOST_FAULTS.
        """
        first = self._doubts.pop(job.slot, "")
        if measurement.outcome not in FAULTS:
            self._faults[first] += bool(first)
            if first and self._faults[first] >= MOST_FAULTS:
                self._leave_out(first, LeftOut(LeftOutKind.FAULTS, {"trainings": MOST_FAULTS}))
            return False
        if first or self.pool.devices_needed(job.configuration) > 1 or not {*self.pool.devices} - {device}:
            return False
        self._doubts[job.slot] = device
        return True

    def is_suspect(self, device: str) -> bool:
        """True if so much failed on this device, some of it perhaps elsewhere too, that it gets nothing new to try."""
        doubts = sum(doubted == device for doubted in self._doubts.values())
        return self._faults[device] + doubts >= MOST_FAULTS

    def _leave_out(self, device: str, reason: LeftOut) -> None:
        if device in self.pool.devices and len(self.pool.devices) > 1:
            self.pool.left_out[device] = reason

    def judge(self, ledger: Ledger) -> None:
        """Leave out what differs too much from the other devices, or fails with what runs there."""
        if not self.pool.is_several:
            return
        repeated = self.calibration_trial(ledger)
        for device, trial in ledger.calibrations.items():
            is_same = repeated is not None and trial.configuration == repeated.configuration
            if trial.measurement.outcome in FAULTS and is_same and repeated:
                self._leave_out(device, LeftOut(LeftOutKind.FAILED, {"trial": repeated.number}))
        # Of a device that may be faulty nothing is believed beforehand: a narrow prior would take half of its difference for
        # noise.
        effects = device_effects(ledger.trials, ledger.calibrations, faulty=self.pool.probes)
        if (
            self.pool.devices and {*self.pool.devices} <= effects.keys()
        ):  # of two that differ nobody knows which is faulty
            self._leave_out_what_differs(effects)

    def _leave_out_what_differs(self, effects: DeviceEffects) -> None:
        """Leave out one after the other, the slowest first: several slow ones would make the others look fast."""
        while len(self.pool.devices) > 1:
            means = sorted((effects[name][0], name) for name in self.pool.devices)
            middle = median(mean for mean, _ in means) if len(means) > 2 else means[-1][0]
            shares = {name: math.expm1(mean - middle) for mean, name in means}
            name = next((name for name, share in shares.items() if abs(share) > TOO_DIFFERENT), "")
            if not name:
                return
            kind = LeftOutKind.SLOWER if shares[name] < 0 else LeftOutKind.FASTER
            self._leave_out(name, LeftOut(kind, {"difference": abs(shares[name])}))

    def effects(self, ledger: Ledger) -> DeviceEffects:
        """Differences of the devices' speeds; empty for one device."""
        if not self.pool.is_several:
            return NO_EFFECTS
        return device_effects(ledger.trials, ledger.calibrations, faulty=self.pool.left_out)

    def calibration_trial(self, ledger: Ledger) -> Trial | None:
        """The trial that every device repeats: the baseline, or if that does not run the quickest that does.

        What the first of them began with, also before this search was resumed.
        """
        able = [
            trial for trial in ledger.trials if trial.feasible and self.pool.devices_needed(trial.configuration) == 1
        ]
        begun = {trial.configuration for trial in ledger.calibrations.values() if trial.feasible}
        begun |= {job.configuration for job in self.jobs if job.slot.kind is SlotKind.DEVICE}
        before = [trial for trial in able if trial.number == 0 or trial.configuration in begun]
        return min(before or able, key=lambda trial: trial.measurement.probe_seconds, default=None)

    def calibration_job(self, device: str, ledger: Ledger, space: SearchSpace, seconds: float) -> Run | None:
        """The job that lets a further device repeat what another one did; None if there is nothing to compare, or it has."""
        if not self.pool.is_several or space.baseline_problem or self.pool.devices_needed(space.baseline) > 1:
            return None
        reference, seen = self.calibration_trial(ledger), ledger.calibrations.get(device)
        if reference is None and ledger.trials:
            return None
        configuration = reference.configuration if reference else space.baseline
        if seen is not None and seen.configuration == configuration:
            return None
        if reference is not None and device in {reference.measurement.device, *_confirming(ledger.trials)}:
            return None
        slot = Slot([*self.pool.probes].index(device), kind=SlotKind.DEVICE)
        return None if slot in ledger.out_of_time else Run(slot, configuration, devices=(device,), seconds=seconds)

    def share_reached(self, ledger: Ledger, device: str) -> float:
        """Share of the best trial's speed that its configuration surely (97.5 %) reaches on this device."""
        best = ledger.standing.leader
        if not self.pool.is_several or best is None or best.measurement.device == device:
            return 1.0
        effects = self.effects(ledger)
        (own, own_sd), (other, other_sd) = (
            effects.get(name, (0.0, DIFFER)) for name in (device, best.measurement.device)
        )
        return math.exp(own - other - 1.96 * math.hypot(own_sd, other_sd))

    def described(self, ledger: Ledger) -> tuple[Device, ...]:
        """The devices of a search that had several."""
        if not self.pool.is_several:
            return ()
        effects, left_out = self.effects(ledger), self.pool.left_out
        return tuple(_described(name, ledger.trials, effects, left_out) for name in self.pool.probes)

    def check_devices(self, seconds: float, waiting: Callable[[str], None], check: Callable[[], None]) -> None:
        """Raise DevicesAway if no device is left, and none returns within these seconds or RETURN_S.

        waiting: called with a message before the wait. check: as in `Pool.wait_for_device`.
        """
        pool, seconds = self.pool, min(RETURN_S, seconds)
        message = f"all devices were lost; waiting up to {format_seconds(seconds)} for one to return"
        if not pool.devices and not pool.wait_for_device(seconds, lambda: waiting(message), check):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.left_out.items())
            raise DevicesAway(f"No device is left to measure on: {reasons}.", "Run the same command again to resume.")

    @contextlib.contextmanager
    def abandoning(self) -> Iterator[None]:
        """Within, jobs run; whatever ends it, none does after it."""
        try:
            yield
        finally:
            if self.pool.is_running:
                self.pool.abandon()
            self._jobs.clear()


def _confirming(trials: Sequence[Trial]) -> set[str]:
    """Devices that ran what others ran too, in rounds."""
    ran = [{m.device for m in trial.confirmations} for trial in trials if trial.configuration.data_parallel_size == 1]
    return set().union(*(names for names in ran if len(names) > 1))


def lost(configuration: Configuration) -> Measurement:
    """The measurement of a configuration that lost its executors."""
    return Measurement(
        Outcome.CRASHED, "two executors were lost while they ran it", asked=configuration.values, where="executor"
    )


def device_effects(
    trials: Sequence[Trial], calibrations: Mapping[str, Trial], faulty: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Device -> (mean, standard deviation) of the logarithm of its speed, against all devices'. calibrations: of each device.

    Log speed = configuration + device + noise, with a normal prior of the device (standard deviation DIFFER, of faulty ones
    TOO_DIFFERENT) and none of the configuration; fitted to what two devices ran: the baseline's probes, and the confirmation
    rounds.
    """
    groups: dict[Hashable, list[tuple[str, float, float]]] = {}
    probes = [(trial.configuration, trial.measurement) for trial in [*calibrations.values(), *trials]]
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
        # Steps' own intervals count if they are wider than what processes differ by.
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


def _described(name: str, trials: Sequence[Trial], effects: DeviceEffects, left_out: Mapping[str, LeftOut]) -> Device:
    mean, deviation = effects.get(name, (0.0, DIFFER))
    low, high = (math.exp(mean + sign * 1.96 * deviation) for sign in (-1, 1))
    rounds = {n for t in trials for n, m in zip(t.rounds, t.confirmations, strict=True) if name in m.device.split(JOIN)}
    probed = sum(name in trial.measurement.device.split(JOIN) for trial in trials)
    return Device(name, math.exp(mean), low, high, probed, len(rounds), left_out.get(name))
