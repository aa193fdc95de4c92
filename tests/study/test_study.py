"""Settings that keep the user's value, as the user's own training showed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.kept import Held, KeptKind, KeptSetting
from autotune.core.request import SAMPLERS
from tests.makers import ended, machine, space
from tests.replay_probe import ReplayProbe
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
    run(tmp_path, probe, among, sampler=sampler, n_trials=6)
    tried = [of for of in probed(probe) if of.micro_batch_size == 4]
    assert len(tried) <= 1
    assert len(probed(probe)) == 3


BY_NORM = KeptSetting(KeptKind.BATCH_NORM, {"layers": 3.0}, setting="micro_batch_size")
BY_LOSS = KeptSetting(
    KeptKind.BATCH, {"of_all": 3.0, "rows": 8.0, "of_parts": 1.0, "part_rows": 2.0}, setting="micro_batch_size"
)
REPEATED = KeptSetting(KeptKind.REPEATED, {"most": 1.0}, setting="workers")
SHARDS = KeptSetting(KeptKind.SHARDS, {"most": 2.0}, setting="workers")


@pytest.mark.parametrize(
    ("kept", "options", "sizes", "told"),
    [
        (BY_NORM, {}, {1, 2, 4, 8}, "--keep-numerics keeps yours"),
        (BY_NORM, {"keep_numerics": True}, {2}, "yours is kept"),
        (BY_LOSS, {}, {2}, "--allow-loss-difference searches it"),
        (BY_LOSS, {"keep_numerics": True}, {2}, "--allow-loss-difference searches it"),
        (BY_LOSS, {"allow_loss_difference": True}, {1, 2, 4, 8}, ""),
    ],
)
def test_what_would_be_another_training_is_searched_as_far_as_the_request_allows_it(
    tmp_path: Path, kept: KeptSetting, options: dict[str, bool], sizes: set[int], told: str
) -> None:
    study, _ = run(tmp_path, ReplayProbe(lambda of: replace(machine(of), kept=(kept,))), n_trials=1, **options)
    assert {*study.space.values["micro_batch_size"]} == sizes
    assert [told in note.text for note in study.kept_notes()] == [True] * bool(told)


@pytest.mark.parametrize(
    ("kept", "own", "left"),
    [
        (REPEATED, 0, (0, 1)),
        (replace(REPEATED, numbers={}), 4, (4,)),
        (SHARDS, 0, (0, 1, 2)),
        (SHARDS, 4, (0, 1, 2, 4)),
        (replace(SHARDS, numbers={"most": 8.0}), 0, (0, 1, 2, 4)),
    ],
)
def test_workers_that_would_repeat_a_stream_or_yield_nothing_are_not_searched(
    tmp_path: Path, kept: KeptSetting, own: int, left: tuple[int, ...]
) -> None:
    among = space(Configuration.exact(8, 2, {"workers": own}), (2,), workers=(0, 1, 2, 4))
    study, _ = run(tmp_path, ReplayProbe(lambda of: replace(machine(of), kept=(kept,))), among, n_trials=1)
    assert study.space.values["workers"] == left
    assert len(study.kept_notes()) == (left != (0, 1, 2, 4))


def test_a_trial_of_an_earlier_search_that_trains_otherwise_is_no_answer_of_a_stricter_one(tmp_path: Path) -> None:
    def world(of: Configuration) -> Measurement:
        return replace(machine(of), kept=(BY_NORM,) if of.micro_batch_size == 2 else ())

    among = space(micro_batch_size=(2, 4))
    study, _ = run(tmp_path, ReplayProbe(world), among)
    assert {trial.disqualified_reason for trial in study.trials} == {""}
    stricter = opened(tmp_path, among, keep_numerics=True)
    barred = {of.configuration.micro_batch_size: of.disqualified_reason for of in stricter.trials}
    assert barred == {2: "", 4: BY_NORM.text}
