"""Rounds of chosen configurations, by a command's own rules on the search's loop: the first measurement is a round too.

rules ─> search: study in a folder of the command's, ledger, devices ─> trials
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.core import Configuration, Measurement
from autotune.core.stop_reason import StopKind, StopReason
from autotune.probe import Probe, ProbeOptions
from autotune.space.search_space import SearchSpace
from autotune.study.job import Done
from autotune.study.loop import open_study, search
from autotune.study.plan import Plan, Watch
from autotune.study.schedule import Rule, Turn, finish_begun
from autotune.study.study import Study


def study_of(baseline: Configuration, folder: Path, plan: Plan) -> Study:
    """The study in this folder, of what is to be measured beside this baseline. Raises StorageFailed."""
    return open_study(folder, SearchSpace(folder.name, baseline.global_batch_size, {}, baseline), plan)


def measure_rounds(study: Study, probe: Probe, rules: Sequence[Rule], watch: Watch = lambda progress: None) -> None:
    """Measure what these rules choose until none does: whole steps, whose training never ends early for being slow.

    A crash ends nothing. Raises StorageFailed; KeyboardInterrupt passes, and everything measured is kept.
    """

    def in_round(configuration: Configuration, options: ProbeOptions) -> Measurement:
        slot = replace(options.slot, round=options.slot.round or 1)
        return probe(configuration, replace(options, slot=slot, best_so_far=None))

    search(study, in_round, watch, rules=(finish_begun, *rules, _end), check=lambda study: None)


def _end(_turn: Turn) -> Done:
    return Done(StopReason(StopKind.ALL_TESTED))
