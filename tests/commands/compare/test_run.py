"""Several studies in one table: each with its own numbers, put into proportion only where the work is the same."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.compare.columns import COMPARED
from autotune.commands.compare.run import compare, different_work
from autotune.commands.compare.text import about, figures
from autotune.commands.result import TuningResult
from autotune.core import Outcome
from autotune.core.errors import InvalidRequest
from autotune.core.request import tuning_request
from autotune.core.trial import Trial
from autotune.report.formats import plain_rows
from tests.makers import MIB, configuration, ended, gpu, out_of_memory, result, trial, verification, workload

NOTHING = result([Trial(0, configuration(), out_of_memory(configuration()))])
ONE_STEP = result([trial(0, steps=trial(0).measurement.steps[:1])])
CARD = result(
    [trial(0, 50.0, confirmed=50.0), trial(1, 100.0, 700 * MIB, of=configuration(16), confirmed=100.0)],
    environment=gpu(device_name="a $plain$ <card>"),
)


def other_work(**facts: Any) -> TuningResult:
    return result(workload=workload(**facts))


def test_what_verify_refuted_is_no_answer() -> None:
    refuted = result(verification=verification(result().best.configuration, False, 0.8))
    _, row = plain_rows(compare([CARD, refuted]))
    speed = refuted.baseline.samples_per_second.value
    assert (row["best_trial"], row["best_samples_per_second"]) == (0, speed)
    assert row["times_as_fast"] == pytest.approx(speed / CARD.best.samples_per_second.value)


# Relative speed -------------------------------------------------------------------------------------------------


def test_the_same_work_on_two_machines_is_put_into_proportion() -> None:
    table = compare([result(), CARD])
    first, second = plain_rows(table)
    assert second["compared_with"] == first["study"]
    assert second["times_as_fast"] == pytest.approx(100.0 / 40.0)
    assert second["times_as_fast_low"] < 2.5 < second["times_as_fast_high"]
    assert (first["times_as_fast"], first["compared_with"]) == (None, "")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (other_work(model_config={"model_type": "gpt2", "n_layer": 4}), "another model config"),
        (other_work(parameters=5_000_000), "another model config"),
        (other_work(gradient_bytes=8_000_000), "another share of the model learns"),
        (other_work(task="masked-lm"), "task masked-lm instead of causal-lm"),
        (other_work(sequence_length=64), "sequence length 64 instead of 96"),
        (other_work(data_identity="topics.txt"), "other data"),
        (result(request=tuning_request("gpt2-mini", 96)), "global batch size 96 instead of 48"),
    ],
    ids=["config", "parameters", "frozen", "task", "length", "data", "batch"],
)
def test_other_work_is_not_put_into_proportion_and_says_why(other: TuningResult, why: str) -> None:
    first, second = plain_rows(compare([result(), other]))
    assert second["times_as_fast"] is None
    assert second["why_not_compared"] == f"against {first['study']}: {why}"
    assert different_work(result(), other) == [why]


def test_one_work_under_two_versions_of_transformers_is_the_same() -> None:
    """A newer version writes more fields into the same config."""
    newer = result(
        environment=gpu(versions={"transformers": "6.0"}),
        workload=workload(model_config={"model_type": "gpt2", "n_layer": 2, "new_field": "x"}),
    )
    assert different_work(result(), newer) == []
    assert different_work(result(), dataclasses.replace(newer, environment=result().environment))


def test_the_same_share_of_a_model_learns_in_whatever_dtype_it_is() -> None:
    wide, narrow = (other_work(parameter_bytes=size * 4_000_000, gradient_bytes=size * 1_000_000) for size in (4, 2))
    assert different_work(wide, narrow) == []


def test_models_without_a_config_are_never_known_to_be_the_same() -> None:
    own = other_work(model_config={})
    assert different_work(own, own) == ["another model config"]


def test_each_study_is_compared_with_the_first_of_its_own_work() -> None:
    short = other_work(sequence_length=64)
    rows = plain_rows(compare([result(), short, CARD, short, NOTHING]))
    assert [row["compared_with"] for row in rows] == ["", "", rows[0]["study"], rows[1]["study"], ""]
    assert rows[4]["why_not_compared"] == "nothing fits"


def test_what_was_not_measured_is_not_said_to_fit_nothing() -> None:
    crashed = result([Trial(0, configuration(), ended(Outcome.CRASHED))])
    rows = plain_rows(compare([dataclasses.replace(result(), trials=[]), crashed, NOTHING, result()]))
    whys = ["not measured", "none completed", "nothing fits", ""]
    assert [row["why_no_best"] for row in rows] == whys
    assert [row["why_not_compared"] for row in rows[:3]] == whys[:3]
    assert rows[3]["why_not_compared"].endswith("not measured there")
    assert [line.split(": ")[1] for row in rows[:3] for line in about(row) if line.startswith("best: ")] == whys[:3]
    assert repr(dataclasses.replace(result(), trials=[])).endswith("not measured>")


# Names and prices -----------------------------------------------------------------------------------------------------


def test_studies_are_results_folders_or_names_and_like_names_are_told_apart(tmp_path: Path) -> None:
    result().save(tmp_path / "a" / "one")
    CARD.save(tmp_path / "b" / "one")
    NOTHING.save(tmp_path / "b" / "two")
    studies = [
        "two",
        tmp_path / "a" / "one",
        str(tmp_path / "b" / "one"),
        TuningResult.load(tmp_path / "b" / "two"),
        CARD,
        CARD,
    ]
    table = compare(studies, output_dir=tmp_path / "b")
    name = "gpt2-mini-causal-lm-gb48-cuda0"
    assert list(table["study"]) == ["b/two", "a/one", "b/one", "b/two (2)", name, f"{name} (2)"]


def test_the_cost_of_a_million_samples_follows_from_price_and_speed() -> None:
    (row,) = plain_rows(compare([CARD], price_per_hour="3.60 EUR"))
    assert (row["price_per_hour"], row["currency"]) == (3.6, "EUR")
    assert row["best_cost_per_million_samples"] == pytest.approx(3.6 / 3600 / 100.0 * 1e6)
    assert row["baseline_cost_per_million_samples"] == pytest.approx(3.6 / 3600 / 50.0 * 1e6)


def test_each_study_has_its_own_price_or_none(tmp_path: Path) -> None:
    place = result().save(tmp_path / "one")
    CARD.save(tmp_path / "two")
    table = compare([place, "two"], {str(place): "$2"}, output_dir=tmp_path)
    assert plain_rows(table[["price_per_hour", "currency"]]) == [
        {"price_per_hour": 2.0, "currency": "$"},
        {"price_per_hour": None, "currency": ""},
    ]
    assert list(compare([place, "two"], {"two": 3, "one": 2.5}, output_dir=tmp_path)["price_per_hour"]) == [2.5, 3.0]


@pytest.mark.parametrize(
    ("price", "said"),
    [("-1", "is not a price"), ("two", "is not a price"), ({"thre": 1}, "names 'thre'"), (math.nan, "is not a price")],
)
def test_what_is_no_price_is_refused(price: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        compare([CARD], price)
    assert caught.value.advice


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for studies in (["nowhere"], []):
        with pytest.raises(InvalidRequest, match="no study"):
            compare(studies, output_dir=tmp_path)


# Files, picture and command line --------------------------------------------------------------------------------------


def test_the_file_holds_the_same_table(tmp_path: Path) -> None:
    table = compare([CARD, NOTHING, ONE_STEP, result()], "2 EUR", output=tmp_path / "compared.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "compared.parquet"), table, check_exact=True)


def test_a_comparison_names_no_place_of_this_machine(tmp_path: Path) -> None:
    model = tmp_path / "my-model"
    request = tuning_request(str(model), 48, dataset=str(tmp_path / "texts.txt"), output_dir=str(tmp_path))
    about = workload(name=str(model), source=str(model), data=str(tmp_path / "tokens"))
    compare([result(request=request, workload=about, folder=tmp_path / "one")], output=tmp_path / "compared.csv")
    text = (tmp_path / "compared.csv").read_text()
    assert str(tmp_path) not in text
    assert "my-model" in text


def test_the_command_prints_the_golden_text_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name, study in {"one": result(), "two": CARD, "three": NOTHING}.items():
        study.save(f"reports/{name}")
    prices = ["--price-per-hour", "one=0.20EUR", "--price-per-hour", "two=2EUR"]
    done = CliRunner().invoke(app, ["compare", "one", "two", "three", *prices, "--output", "compared.md"])
    assert done.exit_code == 0, done.output
    table, _, written = done.stdout.rpartition("\nWritten: ")
    assert max(len(line) for line in table.splitlines()) <= 80
    assert written.strip() == "compared.md"
    golden("compare.txt", table)


def test_json_is_one_object_and_has_no_infinity(tmp_path: Path) -> None:
    ONE_STEP.save(tmp_path / "one")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "one"), "--json"])
    (row,) = json.loads(done.stdout)["studies"]
    assert list(row) == [column.name for column in COMPARED]
    assert (row["best_samples_per_second_high"], row["price_per_hour"]) == (None, None)


def test_no_certainty_is_shown_that_was_not_measured() -> None:
    """Of a study that kept its settings no interval around 1, of one that is hardly known no cost, `about` of one not proven."""
    noisy = result(
        [
            trial(0, 10.0, confirmed=10.0, spread=0.3),
            trial(1, 12.0, of=configuration(16), confirmed=12.0, apart=0.05, spread=0.3),
        ]
    )
    kept = result([trial(0, 10.0, confirmed=10.0), trial(1, 5.0, of=configuration(16), confirmed=5.0)])
    probed = result([trial(0, 10.0), trial(1, 20.0, of=configuration(16))], complete=False)
    rows = plain_rows(compare([noisy, kept, probed, ONE_STEP, CARD], "2 EUR"))
    states = [(row["state"], row["verdict"]) for row in rows]
    assert states == [
        ("too_noisy", "too_noisy"),
        ("kept", "solid"),
        ("improved", "not_proven"),
        ("nothing_to_compare", ""),
        ("improved", "solid"),
    ]
    assert [(row["speedup"], row["speedup_low"]) for row in rows[:2]] == [(1.0, None)] * 2
    head, *cells = figures(rows)
    shown = [line[head.index("speed-up")] for line in cells]
    assert shown[:2] == ["cannot tell", "none found"]
    assert shown[2].startswith("about 2.00x (")
    assert shown[3] == "-"
    assert shown[4].startswith("2.00x (")
    costs = [" ".join(line for line in about(row) if line.startswith("cost of")) for row in rows]
    assert costs[1]
    assert "->" not in costs[1]
    assert not costs[3], "a single step's speed is hardly known"
    assert "->" in costs[4]
    assert any("cannot tell whether it is faster than" in line for line in about(rows[3]))
