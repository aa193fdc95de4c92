"""Every figure of a report: what a page and a folder get of it."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from autotune.core import Configuration, Trial
from autotune.core.request import tuning_request
from autotune.report.figures.canvas import ROLES
from autotune.report.pictures import FILES, Picture, picture_files, pictures
from tests.makers import completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import many, texts

EVERY = [
    "speed-against-memory",
    "memory-and-speed",
    "speed-by-setting",
    "step-time",
    "memory-parts",
    "search-progress",
    "importance",
    "loss-curves",
]


@pytest.fixture(scope="module")
def large() -> list[Picture]:
    return pictures(many(500))


def test_a_study_with_everything_has_every_figure_in_turn(large: list[Picture]) -> None:
    assert [item.name for item in large] == EVERY
    for one in large:
        assert one.title
        assert one.caption.endswith(".")


def test_500_trials_are_no_more_than_a_page_can_carry(large: list[Picture]) -> None:
    assert sum(len(item.svg.encode()) for item in large) < 700_000


def test_each_figure_is_an_svg_that_takes_the_page_s_width_and_says_what_it_is(large: list[Picture]) -> None:
    for item in large:
        root = ElementTree.fromstring(item.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        assert root.get("role") == "img"
        assert not {"width", "height"} & set(root.attrib)
        assert (root[0].tag.rpartition("}")[2], root[0].text) == ("title", item.title)
        assert "<style" not in item.svg, "a style sheet would speak of the whole page"


def test_colours_are_the_page_s_variables_alone(large: list[Picture]) -> None:
    for item in large:
        assert set(re.findall(r"var\(--(\w+)\)", item.svg)) <= set(ROLES)
        assert not re.findall(r"(?:fill|stroke)[:=]\s*\"?(?:#[0-9a-f]{3,8}|rgb|black|white)", item.svg)


def test_no_two_figures_share_an_id_and_each_reference_has_its_own(large: list[Picture]) -> None:
    ids = [found for item in large for found in re.findall(r'\bid="([^"]*)"', item.svg)]
    assert len(ids) == len(set(ids))
    for one in large:
        own = set(re.findall(r'\bid="([^"]*)"', one.svg))
        assert set(re.findall(r'#([\w-]+)[")]', one.svg)) == own


def test_the_same_facts_make_the_same_figures(large: list[Picture]) -> None:
    assert pictures(many(500)) == large


def test_names_full_of_markup_and_mathematics_stay_text() -> None:
    odd = "<script>alert('$x_1$')</script> & $y^2$ \\frac"

    def strange(one: Trial) -> Trial:
        settings = {**dict(one.configuration.settings), odd[:12]: odd if one.number % 2 else "$a_b$"}
        return replace(one, configuration=Configuration(*_sizes(one), tuple(settings.items())))

    facts = many(20)
    trials = [strange(one) for one in facts.trials]
    facts = replace(facts, trials=trials, request=replace(facts.request, study_name=odd))
    made = pictures(facts)
    assert [item.name for item in made] == EVERY
    shown = " ".join(text for item in made for text in texts(item.svg))
    assert "$a_b$" in shown
    assert "<script>alert(" in shown
    alone = picture_files(facts)["speed_against_memory.svg"] or ""
    assert odd in texts(alone)
    assert "<script" not in alone + "".join(item.svg for item in made)


def _sizes(one: Trial) -> tuple[int, int, int]:
    own = one.configuration
    return own.micro_batch_size, own.gradient_accumulation_steps, own.data_parallel_size


def test_what_is_not_known_has_no_figure() -> None:
    facts = result()
    assert [picture.name for picture in pictures(facts)] == [*EVERY[:3], "search-progress"]
    assert not pictures(replace(facts, trials=[]))


@pytest.mark.parametrize(
    "trials",
    [
        [trial(0)],
        [trial(0), trial(1, 20.0, 990 * 2**20), trial(2, 30.0)],
        [trial(0, steps=trial(0).measurement.steps[:1])],
        [Trial(0, configuration(), out_of_memory(configuration(), held_bytes=None, refused_bytes=None))],
        [Trial(0, configuration(), out_of_memory(configuration(), refused_bytes=2**44))],
        [trial(0, peak_device_bytes=None)],
        [Trial(0, configuration(), completed(configuration(), peak_bytes=2000 * 2**20, allowed_bytes=1000 * 2**20))],
        [trial(0, 1e-6), trial(1, 2e6, of=configuration(48))],
    ],
    ids=["one", "three", "one step", "no memory", "much memory", "unknown peak", "over", "far apart"],
)
@pytest.mark.parametrize("objective", ["samples_per_second", "memory"])
def test_no_trials_are_too_strange_to_draw(trials: list[Trial], objective: str) -> None:
    for picture in pictures(result(trials, request=tuning_request("m", 48, objective=objective))):
        ElementTree.fromstring(picture.svg)


def test_files_of_their_own_have_real_colours_and_the_study_s_name() -> None:
    facts = many(20)
    made = picture_files(facts)
    assert set(made) == set(FILES)
    for text in made.values():
        assert text
        assert "var(" not in text
        assert ROLES["accent"] in text
        assert facts.name in texts(text)
        assert ElementTree.fromstring(text).get("width", "").endswith("pt")
    assert picture_files(replace(facts, numerics=None))["loss_curves.svg"] is None


def test_a_person_s_own_settings_of_matplotlib_change_nothing() -> None:
    import matplotlib as mpl

    facts = result()
    before = pictures(facts)
    with mpl.rc_context({"axes.facecolor": "black", "svg.fonttype": "path", "font.size": 30, "lines.linewidth": 9}):
        assert pictures(facts) == before
