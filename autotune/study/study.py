"""Study: an open search and its progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import Trial
from autotune.core.interrupt import StopRequest
from autotune.core.kept import OF_NUMERICS, KeptSetting
from autotune.core.note import Note, NoteKind
from autotune.core.slot import Slot
from autotune.core.units import finite
from autotune.judge.standing import Standing
from autotune.sampler.optuna_samplers import OptunaSampler, Sampler, make_sampler
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.study.ledger import Ledger
from autotune.study.pacing import finishing_seconds, seconds_to_go
from autotune.study.plan import Plan, Progress, ProgressKind
from autotune.study.reference import reference_seconds
from autotune.study.store import probe_folder

CORE_SHARE = 0.5
"""Share of a search's probes for the core settings of a space that names some."""


@dataclass
class Study:
    """An open study: its ledger, in a locked folder, and what chooses what is measured next.

    space: narrowed to what the user's own training leaves to search; opened_space: as it was opened. stop_request: the
    user's. warm_start: set once, by `start_from`. imported: trials of an earlier study of the request. publish: called when a
    trial begins or is measured.
    """

    plan: Plan
    space: SearchSpace
    ledger: Ledger
    sampler: Sampler = field(init=False)
    warm_start: WarmStart = field(init=False)
    stop_request: StopRequest = field(default_factory=StopRequest)
    imported: int = 0
    publish: Callable[[], None] = lambda: None
    opened_space: SearchSpace = field(init=False)

    def __post_init__(self) -> None:
        self.opened_space = self.space
        self.warm_start = self._of_plan(WarmStart(self.plan.allowed_bytes))
        # What is resumed does not propose again what it began with.
        self._seed = self.plan.seed + len(self.ledger.trials)
        self._make_sampler()
        self.keep_settings()

    def _make_sampler(self) -> None:
        self.sampler = make_sampler(self.plan.sampler, self._seed, self.space, self.warm_start, self.plan.score)

    def keep_settings(self) -> bool:
        """Narrow the space to what the trials leave to search; true if it has changed. Call after each new trial."""
        space = self.opened_space.keeping(self.ledger.kept.values(), [trial.configuration for trial in self.trials])
        if space.values == self.space.values:
            return False
        self.space = space
        self._make_sampler()
        return True

    @property
    def folder(self) -> Path:
        return self.ledger.folder

    @property
    def trials(self) -> list[Trial]:
        """The measured trials, in the order of their numbers."""
        return self.ledger.trials

    @property
    def standing(self) -> Standing:
        """Standing of the measured trials."""
        return self.ledger.standing

    @property
    def products(self) -> Mapping[str, float]:
        """Precision -> floating-point operations / second of the device, if they are known."""
        return self.warm_start.arithmetic.products

    def probe_folder(self, slot: Slot) -> Path:
        """Folder of the files of a measurement."""
        return probe_folder(self.folder, slot)

    def start_from(self, warm_start: WarmStart) -> None:
        """Let the sampler `physics` propose from this, with the study's plan."""
        self.warm_start = self._of_plan(warm_start)
        physics = self.sampler.policy if isinstance(self.sampler, OptunaSampler) else self.sampler
        if isinstance(physics, PhysicsSampler):
            physics.knowledge = self.warm_start

    def _of_plan(self, warm_start: WarmStart) -> WarmStart:
        plan = self.plan
        return replace(
            warm_start,
            margin=plan.margin,
            training_steps=plan.training_steps,
            core_probes=int(CORE_SHARE * plan.n_trials),
        )

    def reference_seconds(self, rounds: int = 1) -> float:
        """Seconds that the trainings of the losses' reference are expected to take in this number of next rounds."""
        return reference_seconds(self.plan, self.standing, self.ledger.references, self.products, rounds)

    def time_left(self) -> float:
        """Seconds for measurements, of those that are left.

        Without what the answer's checks are expected to take if there is time for them.
        """
        left = self.plan.time.seconds_left()
        checks_s = finishing_seconds(self.standing) + self.reference_seconds()
        return left - checks_s if checks_s < left else left

    def progress(self, kind: ProgressKind, **what: Any) -> Progress:
        """Progress of the study, for those who watch."""
        plan, ledger = self.plan, self.ledger
        return Progress(
            kind,
            self.standing,
            max_gain=finite(ledger.gap.max_gain_if_fits) if ledger.gap else None,
            probes_left=max(0, plan.probes(self.trials) - len(self.trials)),
            seconds_left=plan.time.seconds_left() if plan.time.is_set else None,
            seconds_to_go=seconds_to_go(
                plan,
                self.standing,
                kind not in (ProgressKind.FINISHING, ProgressKind.DONE),
                ledger.pace,
                self.reference_seconds(),
            ),
            folder=self.folder,
            **what,
        )

    def risk_notes(self) -> list[Note]:
        """Notes on the trials that were tried although they might not fit."""
        risks = sorted(self.ledger.risks.items())
        return [Note(NoteKind.RISK, {"trial": number, "share": risk}) for number, risk in risks]

    def kept_notes(self) -> list[Note]:
        """Notes on the settings that keep the user's value, and on those that would if nothing else may be learned."""
        kept = [each for each in self.ledger.kept.values() if self._rules_out(each)]
        shown = (each for trial in self.trials for each in trial.measurement.kept)
        more = [each for each in shown if each.kind in OF_NUMERICS and each.setting not in self.ledger.kept]
        texts = [f"{each.text}, and yours is kept" if each.kind in OF_NUMERICS else each.text for each in kept]
        texts += [f"{each.text} (--keep-numerics keeps yours)" for each in more]
        return [Note(NoteKind.KEPT, detail=text) for text in dict.fromkeys(texts)]

    def _rules_out(self, kept: KeptSetting) -> bool:
        """True if it leaves all values out but the user's, or at least one that could be proposed."""
        values, own = (
            self.opened_space.values.get(kept.setting, ()),
            self.opened_space.baseline.values.get(kept.setting, 0),
        )
        return "most" not in kept.numbers or not all(kept.allows(value, own) for value in values)
