"""A random world for whole searches in virtual time: devices that differ, are lost and return, what crashes, and what runs out
of memory, at once or in rounds."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.core.measurement import JOIN
from autotune.core.request import SAMPLERS
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import TIMES, StopKind, StopReason
from autotune.core.time_limit import GRACE, TimeLimit
from autotune.executors import ExecutorLost
from autotune.executors.pool import Pool, Work, carried_out
from autotune.judge.dominance import implied_by
from autotune.probe import Probe, ProbeOptions
from autotune.sampler.constants import MOST_BEGUN
from autotune.sampler.optuna_samplers import OptunaSampler
from autotune.space.settings import learning_differences
from autotune.study.finish import missing_proof
from autotune.study.fleet import Fleet
from autotune.study.loop import open_study, search
from autotune.study.plan import Plan, Progress
from autotune.study.schedule import missing_losses
from autotune.study.study import Study
from tests.makers import ALLOWED, MIB, completed, ended, out_of_memory, space, standing_of, warned

OBJECTIVES = ("samples_per_second", "tokens_per_second")
LOSSES = tuple(9 - 0.05 * step for step in range(12))

EPOCH_S = 1e9
"""Seconds since the epoch at which a world begins."""

LIKELY = {StopKind.NOTHING_TO_WIN, StopKind.NOTHING_LIKELY_TO_WIN, StopKind.NOTHING_LIKELY_TO_FIT}
BY_GAINS = LIKELY | {StopKind.NOT_WORTH_IT, StopKind.NOT_WORTH_ASSUMED, StopKind.NOTHING_BETTER}
"""Kinds of ends that follow from random draws."""


@dataclass(frozen=True)
class Clock(TimeLimit):
    """A time limit on a virtual clock."""

    now: Callable[[], float] = lambda: 0.0

    def seconds_left(self) -> float:
        return math.inf if self.seconds is None else max(0.0, self.seconds - self.now())


@dataclass
class World:
    """What the seed makes of a space, its devices and the plan.

    begun: how often each slot was. log: what was measured. has_lost: whether devices were left out.
    """

    seed: int
    clock_s: float = 0.0
    spent_s: float = 0.0
    begun: Counter[Slot] = field(default_factory=Counter)
    measurements: int = 0
    has_lost: bool = False
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.rng = random.Random(self.seed + 1)
        self.names = list("abcd"[: rng.choice((1, 1, 2, 3, 4))])
        self.has_ranks = len(self.names) > 1 and rng.random() < 0.4
        settings: dict[str, Any] = {"checkpointing": ("none", "full"), "precision": ("fp32", "bf16")}
        if self.has_ranks:
            settings["data_parallel_size"] = (1, 2)
        self.space = space(micro_batch_size=(1, 2, 4, 8)[: rng.choice((2, 4, 4))], **settings)
        self.speeds, self.peaks = dict[Configuration, float](), dict[Configuration, float]()
        gains = {name: rng.gauss(0.1, 0.25) for name in ("micro", "full", "bf16", "ranks")}
        scale = rng.choice((1.0, 1.0, 1.0, 2.0, 4.0))
        for one in self.space:
            values = one.values
            log = gains["micro"] * math.log2(one.micro_batch_size) + gains["full"] * (values["checkpointing"] == "full")
            log += gains["bf16"] * (values["precision"] == "bf16") + rng.gauss(0.0, 0.03)
            log += (0.3 + gains["ranks"]) * (one.data_parallel_size > 1)
            self.speeds[one] = 10 * math.exp(log)
            peak = 100 + 110 * scale * one.micro_batch_size * (0.5 if values["checkpointing"] == "full" else 1.0)
            self.peaks[one] = peak * rng.choice((0.5, 1.0, 1.5))
        self.in_rounds = {one: rng.choice((1.0, 1.0, 1.0, 1.6)) for one in self.space}
        self.crashing = {one for one in self.space if rng.random() < 0.08} - {self.space.baseline}
        self.factors = {name: math.exp(rng.gauss(0.0, 0.02)) * rng.choice((1, 1, 1, 1, 0.8)) for name in self.names}
        self.broken = rng.choice([*self.names, "", "", ""]) if len(self.names) > 1 else ""
        self.lost = rng.choice((0.0, 0.0, 0.05, 0.2)) if len(self.names) > 1 else rng.choice((0.0, 0.0, 0.02))
        self.restarts, self.returns = rng.random(), rng.random()
        self.disturbed = rng.choice((0.0, 0.0, 0.1))
        self.wrong = rng.choice(("", "", "bf16"))
        self.noise = rng.choice((0.0, 0.005, 0.02))
        self.flaky = rng.choice([*self.names, "", ""]) if len(self.names) > 1 else ""
        self.kills, self.stops = rng.choice((0, 0, 1, 3)), rng.choice((0, 0, 1))
        limit = rng.choice((None, None, None, 30.0, 60.0, 120.0, 300.0))
        self.plan = Plan(
            n_trials=rng.choice((1, 2, 5, 5, 12, 30)),
            objective=rng.choice((*OBJECTIVES, OBJECTIVES[0])),
            allowed_bytes=ALLOWED,
            time=Clock(limit, 0.0, lambda: self.clock_s),
            sampler=rng.choice(["gp"] + [*SAMPLERS[:2], *SAMPLERS[3:], "physics", "physics", "physics"] * 3),
            seed=self.seed,
            confirmation_rounds=rng.choice((0, 2, 2, 3)),
            training_steps=rng.choice((None, None, 1000, 10**6)),
            no_risk=rng.random() < 0.2,
            require_parity=rng.random() < 0.1,
            allow_loss_difference=rng.random() < 0.1,
            is_cpu=rng.random() < 0.5,
        )

    def probe_on(self, *names: str) -> Probe:
        def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
            started_s = EPOCH_S + self.clock_s + self.spent_s
            measurement = self.measured(tried, options, names)
            self.spent_s += measurement.probe_seconds
            return replace(measurement, started_s=started_s)

        return measured

    def measured(self, tried: Configuration, options: ProbeOptions, names: Sequence[str]) -> Measurement:
        rng, slot, plan = self.rng, options.slot, self.plan
        assert not plan.time.is_over, f"{slot} begins after the end"
        assert self.measurements < 500, "it measures for ever"
        assert tried.data_parallel_size == len(names) or not self.has_ranks
        self.begun[slot] += 1
        self.measurements += 1
        self.log.append(f"{self.clock_s:.0f} s: {slot.kind} {slot.number}.{slot.round} {tried} on {JOIN.join(names)}")
        if self.kills and rng.random() < 0.1:
            self.kills -= 1
            raise KeyboardInterrupt
        if rng.random() < self.lost:
            raise ExecutorLost("it was unplugged")
        is_flaky = self.flaky in names and rng.random() < 0.3
        if tried in self.crashing or self.broken in names or is_flaky:
            reason = f"assertion {tried}".translate(str.maketrans("0123456789", "abcdefghij"))
            return ended(Outcome.CRASHED, reason=reason, probe_seconds=2.0, asked=tried.values)
        values = {**tried.values, "precision": "fp32"} if slot.kind is SlotKind.REFERENCE else tried.values
        known = self.space.configuration(values)
        peak = int(self.peaks[known] * (self.in_rounds[known] if slot.round else 1.0) * MIB)
        if peak > ALLOWED:
            return out_of_memory(tried, probe_seconds=2.0)
        factor = min(self.factors[name] for name in names)
        speed = self.speeds[known] * factor * math.exp(rng.gauss(0.0, self.noise))
        losses = ((9.0,) * 12 if values["precision"] == self.wrong else LOSSES) if slot.round else ()
        seconds = 2.0 + 8 * tried.global_batch_size / speed
        measurement = completed(tried, speed, peak, spread=1e-3, probe_seconds=seconds, losses=losses)
        if seconds > options.deadline_s:
            return ended(Outcome.TIMED_OUT, probe_seconds=options.deadline_s)
        is_disturbed = rng.random() < self.disturbed
        return replace(
            measurement, settings=tried.values, observed_warnings=warned("another process") if is_disturbed else ()
        )


class VirtualPool(Pool):
    """A world's devices: of the jobs that run, the one whose measurements took the fewest seconds ends next."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(
            {name: world.probe_on(name) for name in world.names},
            restart=lambda _: world.rng.random() < world.restarts,
            may_return=lambda _: world.rng.random() < world.returns,
            together=(lambda names: world.probe_on(*names)) if world.has_ranks else None,
        )
        self.study: Study
        self._ends: list[tuple[float, str, Any, BaseException | None]] = []

    def start(self, key: Any, work: Work, device: str, *others: str) -> None:
        assert not {device, *others} & {*self.left_out}, f"{key} on a device that is left out"
        check_begin(self.study, key, self)
        super().start(key, work, device, *others)

    def _begin(self, device: str, work: Work, probe: Probe) -> None:
        self.world.spent_s = 0.0
        value, error = carried_out(work, probe)
        self._ends.append((self.world.clock_s + self.world.spent_s, device, value, error))
        self.world.spent_s = 0.0

    def _next(self) -> tuple[str, Any, BaseException | None]:
        first = min(self._ends, key=lambda end: end[:2])
        self._ends.remove(first)
        self.world.clock_s, device, value, error = first
        return device, value, error

    def wait_for_device(self, seconds: float, waiting: Callable[[], None], check: Callable[[], None]) -> bool:
        """At once, or never."""
        for device in [*filter(self._may_return, self._lost)]:
            if self._restart(device):
                self._lost.remove(device)
                del self.left_out[device]
                return True
        return False


def searched(world: World, folder: Path) -> tuple[Study, StopReason | Exception]:
    """A search of this world, resumed after each kill, with how it ended; fails if what it did makes no sense."""
    kept: dict[Slot, Measurement] = {}
    while True:
        study, pool = open_study(folder, world.space, world.plan), VirtualPool(world)
        fleet, pool.study = Fleet(pool), study
        for slot, measurement in kept.items():
            assert measured(study).get(slot) == measurement, f"{slot} is lost"

        def watch(progress: Progress, study: Study = study) -> None:
            check_progress(progress)
            if progress.kind in ("trial", "confirmed") and world.stops and world.rng.random() < 0.1:
                world.stops -= 1
                study.stop_request.to_stop = True

        try:
            end: StopReason | Exception = search(study, fleet, watch)
        except KeyboardInterrupt:
            kept = measured(open_study(folder, world.space, world.plan))
            continue
        except TimeIsOver as error:
            assert not study.trials, "time is over, and there are trials"
            end = error
        except SearchFailed as error:
            end = error
        check(world, study, fleet, end)
        return study, end


def check_again(world: World, folder: Path, end: StopReason | Exception) -> None:
    """Fail if the same search, begun once more, measures more or ends otherwise, unless it had no time or lost devices."""
    if not isinstance(end, StopReason) or end.kind in TIMES or world.has_lost:
        return
    before = world.measurements
    _, anew = searched(world, folder)
    assert world.measurements == before, f"{anew} after {end}: {world.log[before:]}"
    assert isinstance(anew, StopReason), anew
    kinds = {end.kind, anew.kind}
    assert kinds <= BY_GAINS or kinds <= {StopKind.ALL_TESTED, StopKind.CORE_TESTED} or anew.kind is end.kind


def measured(study: Study) -> dict[Slot, Measurement]:
    """All of a study's measurements."""
    trials = {Slot(trial.number): trial.measurement for trial in study.trials}
    return trials | {
        Slot(trial.number, round_.round): round_ for trial in study.trials for round_ in trial.confirmations
    }


def check_progress(progress: Progress) -> None:
    """Fail if what is told while it runs cannot be."""
    best, fastest = progress.best, progress.fastest
    assert best is None or (best.feasible and best.number and best in progress.trials)
    assert fastest is None or fastest in progress.trials
    progress.speedup_of(best or fastest)
    assert progress.seconds_to_go is None or progress.seconds_to_go >= 0


def check_begin(study: Study, slot: Slot, pool: Pool) -> None:
    """Fail if this measurement is not to be made."""
    trials, ledger = study.trials, study.ledger
    assert not study.stop_request.to_stop, f"{slot} begins after a wish to stop"
    match slot.kind:
        case SlotKind.TRIAL:
            assert slot not in measured(study), f"{slot} is measured already"
        case SlotKind.REFERENCE:
            assert study.plan.confirmation_rounds, "a reference of no rounds"
    if slot.kind is SlotKind.TRIAL and slot.round:
        trial = next(trial for trial in trials if trial.number == slot.number)
        assert trial.feasible, f"{slot} of what does not run"
        assert not trial.disqualified_reason, f"{slot} of what cannot win"
    if slot.kind is SlotKind.TRIAL and slot.number == 0 and slot.round:
        rivals = [each for each in trials[1:] if each.feasible and not each.disqualified_reason]
        assert rivals or ledger.unfinished, f"{slot}: nothing else is a rival"


def check(world: World, study: Study, fleet: Fleet, end: StopReason | Exception) -> None:
    """Fail if a finished search did too much, or ended for another reason than it says."""
    trials, plan, ledger = study.trials, world.plan, study.ledger
    configurations = [trial.configuration for trial in trials]
    assert len({*configurations}) == len(configurations), "probed twice"
    numbers = sorted([*(trial.number for trial in trials), *ledger.unfinished])
    assert not trials or numbers == [*range(len(numbers))] or ledger.out_of_time or world.has_ranks, numbers
    assert len(trials) <= plan.probes(trials)
    for trial in trials:
        rounds = trial.rounds
        assert len(rounds) <= MOST_BEGUN + 1, f"trial {trial.number} has {len(rounds)} rounds"
        assert plan.confirmation_rounds or not rounds
    if len(trials) == 1 and trials[0].feasible:
        assert not trials[0].confirmations, "measured against nobody"
    if plan.time.seconds is not None:
        assert world.clock_s <= (1 + GRACE) * plan.time.seconds + 1, "far too late"
    best = standing_of(trials).answer
    if best is not None:
        assert best.feasible
        assert not best.measurement.ended_early
        assert not best.disqualified_reason
        assert world.begun[Slot(best.number)], "the best was never measured"
        if isinstance(end, StopReason) and best.number and plan.confirmation_rounds and not plan.time.is_set:
            assert best.confirmations, "the best was never measured again"
    assert fleet.pool.is_running is False
    world.has_lost = bool(fleet.pool.left_out)
    fleet.described(ledger)
    missing_losses(study), missing_proof(study)
    if not isinstance(end, StopReason):
        return
    assert trials
    assert not ledger.unfinished or end.kind in TIMES, f"{end.text}: {ledger.unfinished}"
    match end.kind:
        case StopKind.TIME | StopKind.LITTLE_TIME | StopKind.NO_TIME:
            assert plan.time.is_set, "no limit"
        case StopKind.BUDGET:
            assert len(trials) >= plan.probes(trials), f"{end.text}: {len(trials)}"
        case StopKind.ALL_TESTED | StopKind.CORE_TESTED if world.space.size and not isinstance(
            study.sampler, OptunaSampler
        ):
            open_ = [
                one
                for one in world.space
                if implied_by(one, trials) is None and all(learning_differences(one, other) for other in ledger.flagged)
            ]
            assert not open_, f"{end.text}: {open_}"
        case StopKind.NOTHING_TO_WIN | StopKind.NOTHING_LIKELY_TO_WIN | StopKind.NOTHING_LIKELY_TO_FIT:
            assert plan.sampler == "physics", end.text
