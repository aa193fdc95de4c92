"""A forecast from the command and from Python: one real small model, what fits, and how it is printed."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.commands.estimate import run
from autotune.commands.estimate.run import Forecast, ForecastRow, environment_with
from autotune.commands.estimate.text import forecast_lines
from autotune.core.errors import InvalidRequest, NothingFits
from autotune.core.gpus import CARDS, GIB, find_card
from autotune.core.note import Note, NoteKind
from autotune.memory.estimate import MemoryModel
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.probe.process.launcher import ProbeHost
from tests.makers import cpu, workload

QUICK = {"sequence_length": 32, "space": "quick"}


@pytest.fixture(scope="module")
def forecast(host: ProbeHost) -> Forecast:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "HostSet", lambda: nullcontext(host))
        return autotune.estimate("bert-mini", 8, memory_limit="1GiB", only={"checkpointing": ("none",)}, **QUICK)


def test_weights_gradients_and_states_are_16_bytes_a_parameter(forecast: Forecast) -> None:
    row = next(
        row for row in forecast.rows if row.gradient_accumulation_steps > 1 and row.settings["precision"][0] == "fp32"
    )
    assert row.peak is not None
    split = row.peak.split
    held = split.weights + split.gradients + split.optimizer_states
    assert held / forecast.workload.parameters == pytest.approx(16, rel=0.02)


def test_what_fits_is_what_stays_within_memory_less_headroom(forecast: Forecast) -> None:
    least = min(row.peak.device_bytes for row in forecast.rows if row.peak)
    tight = dataclasses.replace(forecast, limit_bytes=least, headroom=0.0)
    assert {row.peak.device_bytes for row in tight.fitting if row.peak} == {least}
    tight.check()
    with pytest.raises(NothingFits, match="Nothing fits into"):
        dataclasses.replace(tight, headroom=0.5).check()
    unknown = [dataclasses.replace(row, peak=None, reason="it has no graph") for row in forecast.rows]
    dataclasses.replace(tight, rows=tuple(unknown)).check()


def needing(gib: float, *precisions: str) -> ForecastRow:
    """A row that needs so much of the device, with any of these precisions."""
    split = MemorySplit(*[0] * len(dataclasses.fields(MemorySplit)))
    return ForecastRow(8, 1, {"precision": precisions}, MemoryPeak(split, int(gib * GIB), "optimizer step"))


def test_without_a_limit_each_row_says_on_which_cards_it_fits(forecast: Forecast) -> None:
    free = dataclasses.replace(forecast, limit_bytes=None, headroom=0.05)
    assert free.allowed_bytes is None
    in_fp32 = free.cards_for(needing(21, "fp32"))
    assert in_fp32 == tuple(card.name for card in CARDS.values() if card.memory_bytes * 0.95 >= 21 * GIB)
    assert {"V100-32GB", "RTX 3090"} <= set(in_fp32)
    assert not {"V100-16GB", "RTX 3080"} & set(in_fp32)
    assert free.cards_for(needing(23, "fp32")) == tuple(name for name in in_fp32 if CARDS[name].memory_bytes > 24 * GIB)
    assert free.cards_for(needing(500, "fp32")) == ()


def test_it_fits_on_cards_alone_that_have_one_of_its_precisions(forecast: Forecast) -> None:
    newer = {name for name, card in CARDS.items() if "bf16" in card.flops and card.memory_bytes > 21 * GIB / 0.95}
    for precisions in (("bf16",), ("bf16_weights",), ("tf32",)):
        assert set(forecast.cards_for(needing(21, *precisions))) == newer
    assert set(forecast.cards_for(needing(21, "fp16", "bf16"))) > newer


def test_weights_in_16_bits_need_a_card_with_bf16() -> None:
    meant = {name: environment_with(cpu(), find_card(name)).precisions for name in ("H100", "T4")}
    assert set(meant["H100"].values()) == {None}
    assert [name for name, reason in meant["T4"].items() if reason is None] == ["fp32", "fp16"]
    assert meant["T4"]["bf16_weights"] == "T4 has no bf16_weights"
    assert set(environment_with(cpu(), None).precisions.values()) == {None}


def test_the_text_is_the_golden_one(golden: Callable[[str, str], None]) -> None:
    split = MemorySplit(GIB, GIB, 2 * GIB, 3 * GIB, GIB // 2, GIB // 4)
    peaks = {(8, 1): split, (4, 2): dataclasses.replace(split, activations=GIB), (2, 4): None}
    rows = tuple(
        ForecastRow(*sizes, {"checkpointing": (name,), "precision": ("fp32", "tf32")}, peak, "" if peak else "a bug")
        for name, factor in {"none": 2, "full": 1}.items()
        for sizes, parts in peaks.items()
        for peak in [parts and MemoryPeak(parts, factor * parts.total, "optimizer step")]
    )
    rows += (ForecastRow(8, 1, {"checkpointing": ("offload",), "precision": ("fp16",)}, None, "it has no graph"),)
    forecast = Forecast(
        workload(), 8, rows, cast(MemoryModel, None), 0.05, 12 * GIB, notes=(Note(NoteKind.RANDOM_WEIGHTS),)
    )
    texts = [forecast, *(dataclasses.replace(forecast, limit_bytes=limit) for limit in (None, GIB))]
    lines = [forecast_lines(text.to_dict()) for text in texts]
    golden("estimate.txt", "\n\n".join(map("\n".join, lines)) + "\n")
    assert lines[2][3].startswith("Nothing fits: the smallest needs"), "before all tables"
    assert max(len(line) for text in lines for line in text) <= 80


def test_the_command_prints_one_json_object_and_fails_where_nothing_fits(
    forecast: Forecast, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["estimate", "bert-mini", "--global-batch-size", "8", "--json"]
    for limit, code in ((forecast.limit_bytes, 0), (2**20, 3)):
        estimated = dataclasses.replace(forecast, limit_bytes=limit)
        monkeypatch.setattr("autotune.commands.estimate.run.estimate", lambda *_, known=estimated, **__: known)
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.output
        assert json.loads(done.stdout) == json.loads(json.dumps(estimated.to_dict()))
    for row in forecast.to_dict()["rows"]:
        assert sum(row["split"].values()) == row["peak_allocated_bytes"] + row["split"]["context"]


def test_a_function_is_not_a_model_and_other_names_are_not_options() -> None:
    with pytest.raises(InvalidRequest):
        autotune.estimate(lambda: None, 8)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no option 'memory'"):
        autotune.estimate("bert-mini", 8, memory="1GiB")  # type: ignore[call-arg]
