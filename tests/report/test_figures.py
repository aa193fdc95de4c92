"""Figures of a report: the data of each, and what a page and a folder get of it."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch
from xml.etree import ElementTree

import pytest

from autotune.core import Configuration, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import OptimalityGap
from autotune.report.axes import Panel
from autotune.report.figures import Figure, figure_files, figures, loss_curves, search_progress, speed_against_memory
from autotune.study.result import SearchResult
from tests.makers import ALLOWED, MIB, completed, configuration, out_of_memory, result, trial
from tests.report.many import many, texts

NAMES = ["speed-against-memory", "search-progress", "loss-curves"]


@pytest.fixture(scope="module")
def large() -> list[Figure]:
    return figures(many(500))


def test_each_figure_is_an_svg_in_the_page_s_width_and_colours(large: list[Figure]) -> None:
    assert [figure.name for figure in large] == NAMES
    assert sum(len(figure.svg.encode()) for figure in large) < 700_000, "500 trials"
    for figure in large:
        root = ElementTree.fromstring(figure.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        assert root.get("role") == ("group" if "<a " in figure.svg else "img")
        assert not {"width", "height"} & set(root.attrib)
        assert (root[0].tag.rpartition("}")[2], root[0].text) == ("title", figure.title)
        assert not re.findall(r"<style| style=| fill=| stroke=| id=", figure.svg), (
            "the page's style sheet has the colours"
        )


def test_each_mark_of_a_trial_says_what_it_is_and_leads_to_its_row(large: list[Figure]) -> None:
    root = ElementTree.fromstring(large[0].svg)
    links = [element for element in root.iter() if element.tag.endswith("}a")]
    fitting = [trial for trial in many(500).trials if trial.feasible]
    assert {link.get("href") for link in links} == {f"#trial-{trial.number}" for trial in fitting}
    titles = {link.get("href"): link[-1].text or "" for link in links if link[-1].tag.endswith("}title")}
    assert titles["#trial-0"].startswith("0: 8x12, fp32, ")
    assert len(titles) == len(links)


def test_names_full_of_markup_and_mathematics_stay_text() -> None:
    odd = "<script>alert('$x_1$')</script> & $y^2$ \\frac"

    def strange(trial: Trial) -> Trial:
        of = trial.configuration
        settings = {**dict(of.settings), odd[:12]: odd if trial.number % 2 else "$a_b$"}
        sizes = (of.micro_batch_size, of.gradient_accumulation_steps, of.data_parallel_size)
        return replace(trial, configuration=Configuration(*sizes, tuple(settings.items())))

    study = many(20)
    request = replace(study.request, study_name=odd)
    study = replace(study, trials=[strange(trial) for trial in study.trials], request=request)
    drawn = figures(study)
    assert [figure.name for figure in drawn] == NAMES
    titles = [element.text or "" for figure in drawn for element in ElementTree.fromstring(figure.svg).iter()]
    assert any("$y^2$" in title for title in titles)
    assert any("<script>alert(" in title for title in titles)
    assert "<script" not in "".join(figure.svg for figure in drawn)


def test_what_is_unknown_has_no_figure() -> None:
    study = result()
    assert [figure.name for figure in figures(study)] == NAMES[:2]
    assert not figures(replace(study, trials=[]))


@pytest.mark.parametrize(
    "trials",
    [
        [trial(0)],
        [trial(0, steps=trial(0).measurement.steps[:1])],
        [Trial(0, configuration(), out_of_memory(configuration(), held_bytes=None, refused_bytes=None))],
        [Trial(0, configuration(), out_of_memory(configuration(), refused_bytes=2**44))],
        [trial(0, peak_device_bytes=None)],
        [Trial(0, configuration(), completed(configuration(), peak_bytes=2000 * 2**20, allowed_bytes=1000 * 2**20))],
        [trial(0, 1e-6, confirmed=1e-6), trial(1, 2e6, of=configuration(48), confirmed=2e6)],
    ],
    ids=["one", "one step", "no memory", "much memory", "unknown peak", "over", "far apart"],
)
def test_no_trials_are_too_strange_to_draw(trials: list[Trial]) -> None:
    for figure in figures(result(trials)):
        ElementTree.fromstring(figure.svg)


def test_a_file_has_real_colours_for_light_and_dark_its_claim_and_no_links() -> None:
    text = figure_files(many(20))["speed_against_memory.svg"]
    assert text
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    assert ".best { color: #0a7a4b }" in light
    assert ".best { color: #4cc38a }" in dark
    assert "var(" not in text
    assert any(" instead of " in shown for shown in texts(text))
    assert "Higher is faster" in text, "the caption is its description"
    assert "<a " not in text
    assert ElementTree.fromstring(text).get("role") == "img"
    assert ElementTree.fromstring(text).get("width", "").endswith("pt")
    assert figure_files(replace(many(20), trials=[]))["speed_against_memory.svg"] is None


# Speed against memory -------------------------------------------------------------------------------------------------


def panel_of(draw: Callable[[SearchResult], Figure | None], study: SearchResult) -> Panel:
    """Axes and marks of the study's figure."""
    with patch("autotune.report.figures.drawn") as drawn:
        draw(study)
    panel = drawn.call_args.args[1][0]
    assert isinstance(panel, Panel)
    return panel


def places(panel: Panel) -> list[tuple[float, float]]:
    return [place for _, place, trial, _ in sorted(panel.dots, key=lambda dot: dot[2].number)]


def test_what_fits_is_where_it_was_measured_and_the_rest_is_counted() -> None:
    over = completed(configuration(24), 70.0, 1050 * MIB, allowed_bytes=ALLOWED)
    study = result(
        [
            trial(0, 10.0, 300 * MIB, confirmed=10.0),
            trial(1, 40.0, 800 * MIB, of=configuration(16), confirmed=40.0),
            Trial(2, configuration(48), out_of_memory(configuration(48))),
            Trial(3, configuration(24), over),
        ]
    )
    figure, file = speed_against_memory(study), figure_files(study)["speed_against_memory.svg"]
    assert figure
    assert file
    assert places(panel_of(speed_against_memory, study)) == [pytest.approx((300, 10.0)), pytest.approx((800, 40.0))]
    assert figure.caption.endswith("Not in it: 2 without a speed or too large.")
    assert {"answer", "defaults"} <= set(texts(figure.svg))
    assert "40.0 instead of 10.0 samples/s, 800 MiB instead of 300 MiB" in " ".join(texts(file))


def test_what_is_allowed_is_a_line_if_it_is_near() -> None:
    fast = trial(1, 20.0, 500 * MIB, of=configuration(16), confirmed=20.0)
    study = result([trial(0, 10.0, 600 * MIB, confirmed=10.0), fast])
    far = replace(study, allowed_bytes=100 * ALLOWED)
    ((_, _, line),) = panel_of(speed_against_memory, study).lines
    assert [x for x, _ in line] == pytest.approx([1000, 1000])
    assert not panel_of(speed_against_memory, far).lines
    figure = speed_against_memory(far)
    assert figure
    assert "97.66 GiB are allowed, far right of the picture." in figure.caption


def test_the_names_of_two_marks_at_one_place_do_not_overlap() -> None:
    study = result(
        [trial(0, 39.9, 800 * MIB, confirmed=39.9), trial(1, 40.0, 800 * MIB, of=configuration(16), confirmed=40.0)]
    )
    panel = panel_of(
        speed_against_memory, replace(study, trials=[*study.trials, trial(2, 10.0, 100 * MIB, of=configuration(4))])
    )
    (_, _, _, upper, _), (_, _, _, lower, _) = panel.labels[:2]
    assert lower - upper > 12


def test_fewer_than_two_trials_are_no_figure() -> None:
    assert speed_against_memory(result([trial(0)])) is None
    assert search_progress(result([TRIALS[1]])) is None
    assert search_progress(result(TRIALS[:2])) is None


# Progress of the search -------------------------------------------------------------------------------------------

EARLY = replace(completed(configuration(4), 99.0), ended_early=True)
TRIALS = [
    trial(0, 10.0, 500 * MIB, confirmed=10.0),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    trial(2, 30.0, 400 * MIB, confirmed=28.0),
    trial(3, 20.0, 300 * MIB),
    Trial(4, configuration(4), EARLY),
]
PROSPECTS = {0: OptimalityGap(math.inf, math.inf, 9), 2: OptimalityGap(0.5, 1.0, 7), 3: OptimalityGap(0.1, 0.2, 6)}


def test_each_trial_that_fits_is_where_its_rounds_measured_it() -> None:
    assert places(panel_of(search_progress, result(TRIALS))) == [
        (0.0, pytest.approx(10.0)),
        (2.0, pytest.approx(28.0)),
        (3.0, pytest.approx(20.0)),
        (4.0, pytest.approx(99.0)),
    ]


def test_the_bound_is_what_the_best_could_still_be_beaten_by() -> None:
    study = result(TRIALS, prospects=PROSPECTS)
    ((_, _, line),) = panel_of(search_progress, study).lines
    assert [value for _, value in line] == pytest.approx([42.0, 42.0, 30.8]), "a step"
    assert [number for number, _ in line] == [2.0, 3.0, 3.0]
    figure = search_progress(study)
    assert figure
    assert "untested configuration is above the bound" in figure.caption


def test_other_samplers_have_no_bound_and_a_bound_far_off_flattens_nothing() -> None:
    ((_, _, line),) = panel_of(search_progress, result(TRIALS)).lines
    assert not line
    far = replace(result(TRIALS), prospects={2: OptimalityGap(50.0, 500.0, 7)})
    assert panel_of(search_progress, far).y.high <= 2.4 * 99.5


# Losses ---------------------------------------------------------------------------------------------------------------

ROUNDS = (1, 2, 3)
RUNS_AWAY = {1: Curve(tuple(10.0**step for step in range(14)))}


def falling(pace: float = 1.0, steps: int = 14) -> dict[int, Curve]:
    return {number: Curve(tuple(8 + number / 50 - pace * step / 10 for step in range(steps))) for number in ROUNDS}


def losses(numerics: Numerics, trials: Sequence[Trial] = ()) -> Figure:
    figure = loss_curves(replace(result(trials) if trials else result(), numerics=numerics))
    assert figure
    return figure


def test_answer_and_band_have_their_names_and_nothing_else_is_drawn() -> None:
    numerics = Numerics(falling(), {3: falling(1.001), 5: falling(0.0)})
    trials = [
        trial(0, confirmed=10.0),
        trial(3, 20.0, of=configuration(precision="bf16"), confirmed=20.0),
        trial(5, of=configuration(optimizer="sgd")),
    ]
    figure = losses(numerics, trials)
    assert {"answer", "fp32, 3 seeds", "loss"} <= set(texts(figure.svg))
    band, line = panel_of(loss_curves, replace(result(trials), numerics=numerics)).lines
    assert (band[1], line[1]) == ("polygon", "polyline")
    assert (len(band[2]), len(line[2])) == (28, 14)
    assert figure.caption.startswith("The line of the answer stays in the band of fp32 over 3 seeds")


def test_one_seed_makes_no_band() -> None:
    one = {1: falling()[1]}
    assert losses(Numerics(one, {1: one})).caption.startswith(
        "The losses of the answer follow those of fp32, of one seed"
    )


def test_what_leaves_the_band_is_said_to() -> None:
    assert "leaves the band" in losses(Numerics(falling(), {1: falling(0.0)})).caption


def test_if_nothing_won_the_fastest_that_learns_differently_is_drawn() -> None:
    rival = replace(trial(1, 40.0, of=configuration(16)), disqualified_reason="its loss differs")
    figure = losses(Numerics(falling(), {1: falling(0.0)}), [trial(0), rival])
    assert figure.caption.startswith("The line of trial 1 leaves")


@pytest.mark.parametrize(
    ("numerics", "is_drawn"),
    [
        (Numerics(), False),
        (Numerics(notes=(Note(NoteKind.BASELINE_FAILS),)), False),
        (Numerics(falling(), {1: {}}), False),
        (Numerics(falling(), {1: {1: Curve((9.0, math.nan, math.inf))}}), False),
        (Numerics(falling(), {1: falling(), 2: {1: Curve((math.nan,) * 14)}}), True),
        (Numerics(falling(), {1: RUNS_AWAY}), True),
        (Numerics(falling(0.0), {1: falling(0.0)}), True),
    ],
)
def test_no_losses_are_too_strange_to_draw(numerics: Numerics, is_drawn: bool) -> None:
    trials = [trial(0, confirmed=10.0), trial(1, 20.0, of=configuration(16), confirmed=20.0)]
    study = replace(result(trials), numerics=numerics)
    assert bool(loss_curves(study)) == is_drawn


def test_one_that_runs_away_does_not_flatten_the_band() -> None:
    panel = panel_of(loss_curves, replace(result(), numerics=Numerics(falling(), {1: RUNS_AWAY})))
    assert 5 < panel.y.low < panel.y.high < 10
