"""The page: the numbers of trials.csv, everything else as text, whole and alone in one file."""

import base64
import csv
import hashlib
import json
import re
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.core import Outcome, Trial
from autotune.core.request import tuning_request
from autotune.core.units import format_bytes
from autotune.report import html
from autotune.report.html import page
from autotune.report.pictures import Picture
from autotune.report.trial_text import speed_text
from autotune.study.result import SearchResult
from tests.makers import configuration, ended, out_of_memory, result, trial
from tests.report.reading import Read
from tests.report.studies import HOSTILE

FIGURE = Picture(
    "first", "A <title>", "A hint", "A caption & more", '<svg viewBox="0 0 9 9"><circle r="3" fill="var(--p1)"/></svg>'
)


def table_of(read: Read) -> list[dict[str, str]]:
    """The rows of the table of trials: column -> whole value."""
    start = next(place for place, (_, attributes, _) in enumerate(read.elements) if attributes.get("id") == "trials")
    names: list[str] = []
    rows: list[list[str]] = []
    for tag, attributes, text in read.elements[start:]:
        if tag == "th" and attributes["scope"] == "col":
            names.append(attributes["title"])
        elif tag == "tr" and "data-outcome" in attributes:
            rows.append([])
        elif rows and (tag == "td" or (tag == "th" and attributes["scope"] == "row")):
            rows[-1].append(attributes.get("data-value", "".join(text).strip()))
        elif tag == "a" and rows and not rows[-1][-1]:
            rows[-1][-1] = "".join(text)  # a failed trial's number leads to its log
        elif tag == "details":
            break
    return [dict(zip(names, row, strict=True)) for row in rows]


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_cell_of_the_table_is_that_of_trials_csv(tmp_path: Path) -> None:
    of = configuration()
    once = trial(3, steps=trial(3).measurement.steps[:1])  # its interval has no end
    study = result([trial(0, confirmed=10.0), Trial(1, of, out_of_memory(of)), trial(2, 12.3456789), once])
    read, written = table_of(Read((study.save(tmp_path) / "report.html").read_text())), lines_of(tmp_path)
    assert len(read) == len(written) == 4
    assert read == [{name: line[name] for name in read[0]} for line in written]
    assert set(read[0]) == set(written[0])


def test_best_and_baseline_are_compared_by_speed_peak_and_what_differs() -> None:
    study = result()
    read = Read(page(study))
    labels = [text for attributes, text in read.named("th") if attributes.get("scope") == "row"]
    assert labels[:5] == ["samples/s", "peak memory", "outcome", "micro batch size", "gradient accumulation steps"]
    assert "precision" in labels
    assert "checkpointing" not in labels
    assert "checkpointing none" in read.text
    texts = [text for _, text in read.named("td")]
    for shown in (study.best_trial, study.baseline_trial):
        assert shown
        assert speed_text(shown) in texts
        assert format_bytes(shown.peak_bytes) in texts


def test_the_order_is_the_reader_s_and_no_heading_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "pictures", lambda facts: [FIGURE])
    read = Read(page(with_logs(result(), "the end")))
    assert [text for _, text in read.named("h1", "h2")][1:] == [
        *("What to paste", "Pictures", "How it was measured", "Warnings"),
        *("Ruled out before the search", "Notes", "Where and what", "Trials"),
    ]
    levels = [int(tag[1]) for tag, _, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    targets = {attributes["id"] for _, attributes, _ in read.elements if "id" in attributes}
    links = [attributes["href"] for attributes, _ in read.named("a") if attributes["href"].startswith("#")]
    assert {link[1:] for link in links} <= targets


def test_every_form_and_every_other_tool_s_file_is_there_to_copy(tmp_path: Path) -> None:
    folder = result().save(tmp_path)
    read = Read((folder / "report.html").read_text())
    shown = {attributes["id"]: text for attributes, text in read.named("pre") if "id" in attributes}
    assert {attributes["data-copy"] for attributes, _ in read.named("button") if "data-copy" in attributes} == set(
        shown
    )
    assert json.loads(shown["paste-json"]) == json.loads((folder / "best_training_arguments.json").read_text())
    assert (folder / "best_training_arguments.yaml").read_text().endswith(f"\n{shown['paste-yaml']}\n")
    for name in ("accelerate_config.yaml", "accelerate_loop.py", "trl.yaml", "axolotl.yaml", "llama_factory.yaml"):
        assert (folder / name).read_text() in shown.values()
        assert {"href": name} in [attributes for attributes, _ in read.named("a")]


def test_markup_in_names_reasons_and_logs_is_text(hostile_page: str) -> None:
    read = Read(hostile_page)
    assert len(read.named("script")) == 1
    assert not read.named("img")
    assert "49" not in re.sub(r"\d\.\d+", "", read.text), "a template inside a name is not run"
    for place in ("title", "dd", "li", "pre", "summary", "td", "p"):
        assert any(HOSTILE in text or HOSTILE[:100] in text for _, text in read.named(place)), place
    assert not any(name.startswith("on") for _, attributes, _ in read.elements for name in attributes)


def test_the_policy_lets_this_script_run_and_nothing_load(hostile_page: str) -> None:
    read = Read(hostile_page)
    policy = next(a["content"] for a, _ in read.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(read.named("script")[0][1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    outside = [
        a for _, a, _ in read.elements if any(":" in a.get(name, "").partition("?")[0] for name in ("href", "src"))
    ]
    assert outside == [{"rel": "icon", "href": "data:,"}]
    assert "url(" not in hostile_page.partition("</style>")[0]
    assert "@import" not in hostile_page


@pytest.mark.parametrize("trials", [[], [trial(0)], [trial(0, 20.0), trial(1, 5.0)]], ids=["none", "one", "own best"])
def test_any_study_makes_a_page(trials: list[Trial]) -> None:
    facts = replace(result([trial(0)]), trials=trials)
    assert Read(page(facts)).named("h1")


def with_logs(study: SearchResult, text: str) -> SearchResult:
    """The study with this at the end of the log of every trial that failed."""
    return replace(
        study,
        trials=[
            replace(trial, measurement=replace(trial.measurement, log_tail=text))
            if trial.final.outcome.value != "completed"
            else trial
            for trial in study.trials
        ],
    )


def test_500_trials_with_long_logs_are_all_there_in_less_than_two_megabytes(large_facts: SearchResult) -> None:
    text = page(with_logs(large_facts, "<" * 3900))
    assert len(table_of(Read(text))) == 500
    assert len(text.encode()) < 2_000_000
    failed = [trial for trial in large_facts.trials if trial.final.outcome is not Outcome.COMPLETED]
    assert text.count('<details id="trial-') == len(failed)
    assert text.count("&lt;" * 3900) == html.MOST_LOGS
    assert text.count("/log.txt") == len(failed) - html.MOST_LOGS


def test_the_page_names_no_place_of_this_machine(tmp_path: Path) -> None:
    of = configuration()
    log = f'File "{tmp_path}/script.py", line 3\n{tmp_path}/deep/er/data.txt is missing'
    crashed = Trial(1, of, ended(Outcome.CRASHED, log_tail=log))
    text = page(result([trial(0), crashed], request=tuning_request(str(tmp_path), 48)))
    assert str(tmp_path) not in text
    assert "…/script.py" in text


def colours() -> dict[str, tuple[str, str]]:
    """Name -> (light, dark) of every colour of the page."""
    style = resources.files("autotune.report").joinpath("templates/palette.css").read_text()
    return {
        name: (light, dark) for name, light, dark in re.findall(r"--([\w]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    }


def contrast(first: str, second: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_text_and_marks_stand_out_from_the_paper() -> None:
    """WCAG AA: 4.5 for text, 3 for figures."""
    for mode in (0, 1):
        colour = {name: pair[mode] for name, pair in colours().items()}
        for name in ("ink", "muted", "accent", "best", "baseline", "bad"):
            assert all(contrast(colour[name], colour[ground]) >= 4.5 for ground in ("paper", "raised")), name
        for name in (f"p{number}" for number in range(1, 7)):
            assert contrast(colour[name], colour["paper"]) >= 3, name
