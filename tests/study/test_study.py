"""Settings that keep the user's value, as the user's own training showed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.kept import Held, KeptKind, KeptSetting
from autotune.core.request import SAMPLERS
from autotune.probe.replay import ReplayProbe
from tests.makers import ended, machine, space
from tests.study.test_loop import opened, probed, run

DECIDED = (KeptSetting(KeptKind.LOADER, {"rows": 4.0, "step_rows": 16.0}, setting="micro_batch_size"),)
HELD = Held(2.0, 96.0, counts_rows=True)


def shown_by(at: int) -> Callable[[Configuration], Measurement]:
    """A world in which a micro-batch of this size shows that the loader decides it, as a baseline or as another trial does."""

    def world(of: Configuration) -> Measurement:
        if of.micro_batch_size != at:
            return replace(machine(of), held=Held(1.0, 48.0))
        if at == 2:
            return replace(machine(of), held=HELD, kept=DECIDED)
        return ended(Outcome.MISCONFIGURED, kept=DECIDED, asked=of.values)

    return world


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_after_the_baseline_showed_that_its_loader_decides_the_batch_the_other_settings_are_searched(
    tmp_path: Path, sampler: str
) -> None:
    probe = ReplayProbe(shown_by(2))
    study, _ = run(tmp_path, probe, sampler=sampler)
    assert {(of.micro_batch_size, of.values["checkpointing"]) for of in probed(probe)} == {(2, "none"), (2, "full")}
    assert [note.text for note in study.kept_notes()] == [DECIDED[0].text]
    assert {out.value: out.reason.text for out in study.space.ruled_out} == dict.fromkeys((1, 4, 8), DECIDED[0].text)
    held = [options.held for _, options in probe.asked]
    assert (held[0], {*held[1:]}) == (None, {HELD})  # all others are held to what the baseline's batches hold
    again = opened(tmp_path, sampler=sampler)  # as it follows from what is on disk
    assert again.space.values == study.space.values
    assert again.kept_notes() == study.kept_notes()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_trial_that_shows_it_is_no_answer_and_ends_the_search_for_other_sizes(tmp_path: Path, sampler: str) -> None:
    probe = ReplayProbe(shown_by(4))
    among = space(micro_batch_size=(2, 4), checkpointing=("none", "full"))
    study, _ = run(tmp_path, probe, among, sampler=sampler, n_trials=6)
    tried = [of for of in probed(probe) if of.micro_batch_size == 4]
    assert len(tried) <= 1
    assert len(probed(probe)) == 3
    study.write_optuna()


def test_a_study_without_kept_settings_keeps_its_space_and_sampler(tmp_path: Path) -> None:
    study = opened(tmp_path)
    sampler = study.sampler
    assert not study.keep_settings()
    assert study.sampler is sampler
    assert study.space is study.opened_space
