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
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.report import charts, html
from autotune.report.figures import Figure
from autotune.report.html import BYTES, LINES, log_tails, page
from autotune.study.result import SearchResult
from tests.makers import MIB, completed, configuration, ended, out_of_memory, result, trial
from tests.report.reading import Read
from tests.report.studies import HOSTILE

FAILED = Trial(3, configuration(48), out_of_memory(configuration(48)))
FIGURE = Figure(
    "first", "A <title>", "A hint", "A caption & more", '<svg viewBox="0 0 9 9"><circle r="3" fill="var(--p1)"/></svg>'
)


def table_of(read: Read) -> list[dict[str, str]]:
    """The rows of the table of trials: column -> whole value."""
    start = next(place for place, (_, attributes, _) in enumerate(read.elements) if attributes.get("id") == "trials")
    names: list[str] = []
    rows: list[list[str]] = []
    for tag, attributes, text in read.elements[start:]:
        if tag == "th" and attributes["scope"] == "col":
            names.append(attributes["data-name"])
        elif tag == "tr" and "data-outcome" in attributes:
            rows.append([])
        elif rows and (tag == "td" or (tag == "th" and attributes["scope"] == "row")):
            rows[-1].append(attributes.get("data-value", "".join(text).strip()))
        elif tag == "a" and rows and not rows[-1][-1]:
            rows[-1][-1] = "".join(text)  # a failed trial's number leads to its log
        elif tag == "p":
            break
    return [dict(zip(names, row, strict=True)) for row in rows]


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_cell_of_the_table_is_that_of_trials_csv(tmp_path: Path) -> None:
    of = configuration()
    once = trial(3, steps=trial(3).measurement.steps[:1])  # its interval has no end
    fast = trial(2, 12.3456789, confirmed=12.3456789)
    study = result([trial(0, confirmed=10.0), Trial(1, of, out_of_memory(of)), fast, once])
    read, written = table_of(Read((study.save(tmp_path) / "report.html").read_text())), lines_of(tmp_path)
    assert len(read) == len(written) == 4
    assert sorted(read, key=lambda row: row["number"]) == [{name: line[name] for name in read[0]} for line in written]
    assert set(read[0]) == set(written[0])


def test_the_answer_and_the_user_s_own_are_on_top_of_the_table_then_comes_speed() -> None:
    study = result(
        [trial(0, 10.0, confirmed=10.0), *(trial(n, 30.0 + n, of=configuration(16)) for n in (1, 2)), FAILED]
    )
    study = replace(study, trials=[*study.trials, trial(4, 90.0, of=configuration(24), confirmed=90.0)])
    assert [row["number"] for row in table_of(Read(page(study)))] == ["4", "0", "2", "1", "3"]


def test_yours_and_tuned_are_next_to_each_other_in_figures_and_dots() -> None:
    read = Read(page(result()))
    texts = [text for _, text in read.named("b", "span")]
    assert {"40.0", "was 10.0", "500 MiB", "was 500 MiB"} <= set(texts)
    dots = [attributes.get("title", "") for attributes, _ in read.named("a")]
    assert any(title.startswith("Trial 1: 16 x 3, ") and "by 2 further measurements" in title for title in dots)


def test_the_order_is_the_reader_s_and_every_link_has_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "figures", lambda facts: [FIGURE])
    read = Read(page(with_logs(result(), "the end")))
    assert [text for _, text in read.named("h2")] == [
        *("Before you rely on it", "What each change brought", "Every configuration, fastest first", "Details"),
    ]
    assert [text for _, text in read.named("h1")] == [" as fast as the Trainer's defaults (8×6, fp32)"]
    assert next(text for _, text in read.named("em")) == "4.00×"
    levels = [int(tag[1]) for tag, _, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    targets = [attributes["id"] for _, attributes, _ in read.elements if "id" in attributes]
    assert len(targets) == len(set(targets))
    links = [attributes["href"] for attributes, _ in read.named("a") if attributes["href"].startswith("#")]
    assert {link[1:] for link in links} <= set(targets)


def test_what_changed_is_marked_with_what_it_was() -> None:
    read = Read(page(result()))
    marked = [text.strip() for _, text in read.named("mark")]
    assert [re.sub(r"  +", "  ", line) for line in marked[:3]] == [
        "per_device_train_batch_size=16,  # was 8",
        "gradient_accumulation_steps=3,  # was 6",
        "bf16=True,  # was False",
    ]
    assert {"--bf16 True \\", "bf16: true"} <= set(marked)
    assert not [line for line in marked if "optim" in line]


ALONE = result([trial(0)])


@pytest.mark.parametrize(
    ("study", "absent", "present"),
    [
        (ALONE, ("paste", "ladder", "configurations", "step-time", "figure-search-progress"), ("next", "every-trial")),
        (result([FAILED]), ("paste", "ladder", "configurations"), ("failures", "summary")),
        (result(), ("next",), ("paste", "ladder", "configurations", "summary")),
    ],
    ids=["nothing else measured", "nothing fits", "improved"],
)
def test_a_section_without_a_result_is_not_there(
    study: SearchResult, absent: tuple[str, ...], present: tuple[str, ...]
) -> None:
    targets = {attributes["id"] for _, attributes, _ in Read(page(study)).elements if "id" in attributes}
    assert not targets & set(absent)
    assert set(present) <= targets


def test_parts_of_memory_add_up_to_the_measured_peak() -> None:
    split = MemorySplit(*(40 * MIB,) * 5, 0)
    peaks = {number: MemoryPeak(split, 200 * MIB, "optimizer step") for number in (0, 1)}
    chart = charts.memory_parts(result(estimated_peaks=peaks))
    assert chart
    assert chart.parts["not modelled"] == [300 * MIB, 300 * MIB]
    assert chart.most == 500 * MIB
    over = charts.memory_parts(result(estimated_peaks={1: replace(peaks[1], reserved_bytes=1000 * MIB)}))
    assert over
    assert (over.most, over.marks) == (1000 * MIB, [500 * MIB]), "a line where less was measured than was estimated"


def test_a_dot_plot_of_many_shows_the_fastest_and_both_special_ones() -> None:
    speeds = [10.0 + number for number in range(40)]
    study = result([trial(n, speed, of=configuration(16), confirmed=speed) for n, speed in enumerate(speeds)])
    plot = charts.dot_plot(study)
    assert plot
    assert len(plot.rows) == charts.MOST_DOTS
    assert [charts.role_of(plot.rows[at][0], study) for at in (0, -1)] == ["best", "baseline"]
    assert plot.hidden == 20
    assert [plot.place(at) for at in (plot.ticks[0] - 1, plot.ticks[0], plot.ticks[-1], 1e9)] == [0, 0, 100, 100]


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
    assert not re.search(r"(?<![\d.])49(?!\d)", read.text), "a template inside a name is not run"
    for place in ("title", "dd", "li", "pre", "summary", "td", "p", "span"):
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


@pytest.mark.nightly
def test_500_trials_with_long_logs_are_all_there_in_less_than_two_megabytes(large_facts: SearchResult) -> None:
    text = page(with_logs(large_facts, "<" * 3900))
    assert len(table_of(Read(text))) == 500
    assert len(text.encode()) < 2_000_000
    failed = [trial for trial in large_facts.trials if trial.final.outcome is not Outcome.COMPLETED]
    assert text.count('<details id="log-') == len(failed)
    assert text.count("&lt;" * 3900) == html.MOST_LOGS
    assert text.count("/log.txt") == len(failed) - html.MOST_LOGS


def test_the_page_names_no_place_of_this_machine(tmp_path: Path) -> None:
    of = configuration()
    log = f'File "{tmp_path}/script.py", line 3\n{tmp_path}/deep/er/data.txt is missing'
    crashed = Trial(1, of, ended(Outcome.CRASHED, log_tail=log))
    result([trial(0), crashed], request=tuning_request(str(tmp_path), 48)).save(tmp_path / "study")
    text = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
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


def crashed(number: int = 1, **facts: object) -> Trial:
    return Trial(number, configuration(), ended(Outcome.CRASHED, **facts))


def test_only_trials_that_did_not_complete_have_a_log() -> None:
    assert log_tails([trial(0, log_tail="fine"), crashed(log_tail="a traceback\n")], None) == {1: "a traceback"}
    assert log_tails([crashed()], None) == {}


def test_a_loaded_study_s_logs_are_read_from_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "probes" / "0001"
    (place / "confirmation-2").mkdir(parents=True)
    (place / "log.txt").write_text("x" * 10 * BYTES + "\nthe probe's\n")
    (place / "confirmation-2" / "log.txt").write_text("the second round's")
    late = Trial(1, configuration(), completed(configuration()), (completed(configuration()), ended(Outcome.CRASHED)))
    assert log_tails([crashed()], tmp_path) == {1: "the probe's"}
    assert log_tails([late], tmp_path) == {1: "the second round's"}
    assert log_tails([crashed(7)], tmp_path) == {}


def test_the_last_whole_lines_of_a_log_are_kept() -> None:
    tail = log_tails([crashed(log_tail="\n".join(map(str, range(100))))], None)[1]
    assert tail.splitlines() == [str(line) for line in range(100 - LINES, 100)]


def test_logs_name_no_places_of_the_machine_and_no_tokens() -> None:
    log = 'File "/home/ann/work/train.py", line 3: token=hf_abcdefghijklmnopqrst!'
    assert log_tails([crashed(log_tail=log)], None) == {1: 'File "…/train.py", line 3: token=(a token)!'}
