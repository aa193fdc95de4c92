"""The heat maps: the best speed of each cell, and the cells that ran out of memory."""

from autotune.core import Outcome, Trial
from autotune.report.figures.heat_map import draw
from tests.makers import configuration, ended, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_texts, many


def test_cells_show_the_best_speed_and_what_ran_out_of_memory() -> None:
    bf16, full = configuration(16, precision="bf16"), configuration(16, precision="bf16", checkpointing="full")
    trials = [
        trial(0, 10.0, of=configuration(8)),
        trial(1, 41.0, of=bf16),
        trial(2, 37.0, of=full),
        Trial(3, configuration(16), out_of_memory(configuration(16))),
        Trial(4, configuration(48, precision="bf16"), ended(Outcome.NON_FINITE_LOSS)),
    ]
    study = result(trials)
    made, shown = drawn(draw, study), drawn_texts(draw, study)
    # checkpointing: none 8 -> 10, none 16 -> 41 (one ran out of memory), none 48 failed, full 16 -> 37;
    # precision: fp32 8 -> 10, fp32 16 -> OOM, bf16 16 -> 41, bf16 48 failed
    assert {name for name in ("checkpointing", "precision", "optimizer", "workers") if name in shown} == {
        "checkpointing",
        "precision",
    }
    assert sorted(text for text in shown if text in ("10.0", "37.0", "41.0", "OOM", "failed")) == sorted(
        ["10.0", "10.0", "37.0", "41.0", "41.0", "OOM", "failed", "failed"]
    )
    collections = made.figure.axes[0].collections
    assert sum(len(collection.get_paths()) for collection in collections if collection.get_hatch()) == 1
    corners = [
        collection
        for collection in collections
        if not collection.get_hatch() and len(collection.get_paths()[0].vertices) == 4
    ]
    assert sum(len(corner.get_paths()) for corner in corners) == 1, (
        "a cell in which some ran out of memory and others ran"
    )


def test_faster_cells_are_darker_and_untried_ones_empty() -> None:
    trials = [trial(0, 10.0, of=configuration(8)), trial(1, 40.0, of=configuration(16, workers=2))]
    made = drawn(draw, result(trials))
    alphas = sorted(face[3] for collection in made.figure.axes[0].collections for face in collection.get_facecolors())
    assert alphas[:2] == [0.0, 0.0]
    assert alphas[2] < alphas[3] < 0.61


def test_a_setting_of_one_value_has_no_panel_and_none_no_figure() -> None:
    assert draw(result([trial(0), trial(1, of=configuration(16))])) is None


def test_where_nothing_fits_the_cells_that_ran_out_of_memory_are_shown() -> None:
    every = [configuration(8), configuration(16, checkpointing="full")]
    lost = [Trial(number, of, out_of_memory(of)) for number, of in enumerate(every)]
    assert drawn_texts(draw, result(lost)).count("OOM") == 2
    failed = [Trial(number, of, ended(Outcome.NON_FINITE_LOSS)) for number, of in enumerate(every)]
    assert draw(result(failed)) is None


def test_large_studies_keep_to_what_there_is_room_for() -> None:
    made = drawn(draw, many(150))
    assert made.figure.get_figheight() < 15
