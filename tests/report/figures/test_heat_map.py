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
    shown = drawn_texts(draw, result(trials))
    # checkpointing: none 8 -> 10, none 16 -> 41 (one ran out of memory), none 48 failed, full 16 -> 37;
    # precision: fp32 8 -> 10, fp32 16 -> OOM, bf16 16 -> 41, bf16 48 failed
    assert [name for name in ("checkpointing", "precision", "optimizer", "workers") if name in shown] == [
        "checkpointing",
        "precision",
    ]
    cells = ["10.0", "10.0", "37.0", "41.0", "41.0*", "OOM", "failed", "failed"]
    assert sorted(text for text in shown if text in cells) == cells


def test_faster_cells_are_darker_and_untried_ones_empty() -> None:
    trials = [trial(0, 10.0, of=configuration(8)), trial(1, 40.0, of=configuration(16, workers=2))]
    (table,) = drawn(draw, result(trials)).figure.axes[0].tables
    alphas = {place: table[place].get_facecolor()[3] for place in ((0, 1), (0, 2), (1, 1), (1, 2))}
    assert alphas[0, 2] == alphas[1, 1] == 0.0
    assert 0 < alphas[0, 1] < alphas[1, 2] < 0.61


def test_without_two_values_or_any_speed_there_is_a_figure_only_of_what_ran_out_of_memory() -> None:
    assert draw(result([trial(0), trial(1, of=configuration(16))])) is None
    configurations = [configuration(8), configuration(16, checkpointing="full")]
    lost = [Trial(number, of, out_of_memory(of)) for number, of in enumerate(configurations)]
    assert drawn_texts(draw, result(lost)).count("OOM") == 2
    failed = [Trial(number, of, ended(Outcome.NON_FINITE_LOSS)) for number, of in enumerate(configurations)]
    assert draw(result(failed)) is None


def test_large_studies_keep_to_what_there_is_room_for() -> None:
    assert drawn(draw, many(150)).figure.get_figheight() < 15
