"""Every figure of a report: what a page and a folder get of it."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from autotune.core import Configuration, Trial
from autotune.report.figures.canvas import ROLES
from autotune.report.pictures import FILES, Picture, picture_files, pictures
from tests.makers import completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import many, texts

NAMES = ["speed-against-memory", "search-progress", "loss-curves"]


@pytest.fixture(scope="module")
def large() -> list[Picture]:
    return pictures(many(500))


def test_each_figure_is_an_svg_in_the_page_s_width_and_colours(large: list[Picture]) -> None:
    assert [picture.name for picture in large] == NAMES
    assert sum(len(picture.svg.encode()) for picture in large) < 700_000, "500 trials"
    for picture in large:
        root = ElementTree.fromstring(picture.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        assert root.get("role") == ("group" if "<a " in picture.svg else "img")
        assert not {"width", "height"} & set(root.attrib)
        assert (root[0].tag.rpartition("}")[2], root[0].text) == ("title", picture.title)
        assert picture.svg.count("font-family") == 1, "the reader's own font"
        assert "<style" not in picture.svg, "a style sheet would apply to the whole page"
        assert set(re.findall(r"var\(--(\w+)\)", picture.svg)) <= set(ROLES)
        assert not re.findall(r"(?:fill|stroke)[:=]\s*\"?(?:#[0-9a-f]{3,8}|rgb|black|white)", picture.svg)


def test_no_two_figures_share_an_id_and_each_reference_has_its_own(large: list[Picture]) -> None:
    ids = [id for picture in large for id in re.findall(r'\bid="([^"]*)"', picture.svg)]
    assert len(ids) == len(set(ids))
    for picture in large:
        own = set(re.findall(r'\bid="([^"]*)"', picture.svg))
        links = set(re.findall(r'href="#(trial-\d+)"', picture.svg))
        assert set(re.findall(r'#([\w-]+)[")]', picture.svg)) - links == own


def test_each_mark_of_a_trial_says_what_it_is_and_leads_to_its_row(large: list[Picture]) -> None:
    root = ElementTree.fromstring(large[0].svg)
    links = [element for element in root.iter() if element.tag.endswith("}a")]
    fitting = [trial for trial in many(500).trials if trial.feasible]
    assert {link.get("href") for link in links} == {f"#trial-{trial.number}" for trial in fitting}
    titles = {link.get("href"): link[-1].text or "" for link in links if link[-1].tag.endswith("}title")}
    assert titles["#trial-0"].startswith("0: 8x12, fp32, ")
    assert len(titles) == len(links)


@pytest.mark.nightly
def test_the_same_study_makes_the_same_figures_whatever_the_user_s_matplotlib_settings(large: list[Picture]) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"axes.facecolor": "black", "svg.fonttype": "path", "font.size": 30, "lines.linewidth": 9}):
        assert pictures(many(500)) == large


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
    figures = pictures(study)
    assert [picture.name for picture in figures] == NAMES
    titles = [element.text or "" for picture in figures for element in ElementTree.fromstring(picture.svg).iter()]
    assert any("$y^2$" in title for title in titles)
    assert any("<script>alert(" in title for title in titles)
    assert "<script" not in "".join(picture.svg for picture in figures)


def test_what_is_unknown_has_no_figure() -> None:
    study = result()
    assert [picture.name for picture in pictures(study)] == NAMES[:2]
    assert not pictures(replace(study, trials=[]))


@pytest.mark.parametrize(
    "trials",
    [
        [trial(0)],
        [trial(0, steps=trial(0).measurement.steps[:1])],
        [Trial(0, configuration(), out_of_memory(configuration(), held_bytes=None, refused_bytes=None))],
        [Trial(0, configuration(), out_of_memory(configuration(), refused_bytes=2**44))],
        [trial(0, peak_device_bytes=None)],
        [Trial(0, configuration(), completed(configuration(), peak_bytes=2000 * 2**20, allowed_bytes=1000 * 2**20))],
        [trial(0, 1e-6), trial(1, 2e6, of=configuration(48))],
    ],
    ids=["one", "one step", "no memory", "much memory", "unknown peak", "over", "far apart"],
)
def test_no_trials_are_too_strange_to_draw(trials: list[Trial]) -> None:
    for picture in pictures(result(trials)):
        ElementTree.fromstring(picture.svg)


def test_files_of_their_own_have_real_colours_their_claim_and_no_links() -> None:
    files = picture_files(many(20))
    assert set(files) == set(FILES)
    for text in files.values():
        assert text
        assert "var(" not in text
        assert ROLES["best"] in text
        assert any(" instead of " in shown for shown in texts(text))
        assert 'href="#trial' not in text
        assert ElementTree.fromstring(text).get("width", "").endswith("pt")
    assert picture_files(replace(many(20), trials=[]))["speed_against_memory.svg"] is None
