"""How much of a card's arithmetic a training uses, by hand and in every place where it is shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.result import TuningResult
from autotune.core import Environment
from autotune.report.html import page
from autotune.report.page_table import table_of
from autotune.report.summary import answer_lines, summary
from autotune.space.utilization import Arithmetic, SampleFlops, adapter_key, padded_share
from tests.makers import GIB, completed, configuration, cpu, gpu, result, trial, workload

TERA = 1e12
H200 = {"device_name": "NVIDIA H200", "total_memory_bytes": int(139.7 * GIB)}
KNOWN = Arithmetic({"": SampleFlops(TERA)}, {"fp32": 50 * TERA, "bf16": 780 * TERA})


def found(precision: str = "bf16", speed: float = 450.0, **facts: Any) -> TuningResult:
    """A study on an H200 of samples of a TFLOP; the best runs at this speed."""
    trials = [
        trial(0, 40.0, confirmed=40.0),
        trial(1, speed, of=configuration(16, precision=precision), confirmed=speed),
    ]
    return result(trials, **{"environment": gpu(**H200), "arithmetic": KNOWN, **facts})


@pytest.mark.parametrize(
    ("precision", "peak"), [("bf16", 989.5), ("bf16_weights", 989.5), ("tf32", 494.5), ("fp32", 67.0)]
)
def test_it_is_what_a_second_computes_against_the_sheet_s_peak_of_that_precision(precision: str, peak: float) -> None:
    study = found(precision, speed=45.0)
    use = study.utilization(study.trials[1])
    assert use is not None
    assert use.mfu == pytest.approx(45.0 / peak, rel=0.01)


def test_the_fastest_product_that_was_measured_stands_beside_it() -> None:
    use = found().utilization(found().best)
    assert use is not None
    assert (use.mfu, use.of_measured) == (pytest.approx(450 / 989.5, rel=0.01), pytest.approx(450 / 780, rel=0.01))
    assert use.text.startswith("45.")
    assert "of the H200's 989.5 TFLOP/s in bf16 (MFU), 58% of the fastest" in use.text


@pytest.mark.parametrize(
    "environment",
    [gpu(device_name="a plain card"), gpu(**{**H200, "total_memory_bytes": 70 * GIB}), cpu(**H200)],
    ids=["not in the list", "a slice of it", "a CPU"],
)
def test_of_a_device_that_is_not_known_nothing_is_guessed(environment: Environment) -> None:
    study = found(environment=environment)
    assert found(arithmetic=Arithmetic()).utilization(study.best) is None, "operations were not counted"
    use = study.utilization(study.best)
    assert use is not None
    assert use.mfu is None
    assert use.of_measured == pytest.approx(450 / 780, rel=0.01)


def test_a_batch_is_padded_to_the_mean_of_the_longest_of_so_many() -> None:
    evenly = [step / 1000 for step in range(1001)]
    assert [padded_share(evenly, count) for count in (1, 2, 9)] == pytest.approx([1 / 2, 2 / 3, 9 / 10], abs=1e-3)
    assert padded_share([1.0, 1.0, 1.0], 5) == pytest.approx(1.0)


def test_each_rank_computes_its_share() -> None:
    study = found()
    of = replace(study.best.configuration, gradient_accumulation_steps=1, data_parallel_size=3)
    shared = replace(study.best, configuration=of, measurement=completed(of, 450.0), confirmations=())
    alone, use = study.utilization(study.best), study.utilization(shared)
    assert alone is not None
    assert use is not None
    assert alone.mfu == pytest.approx(3 * (use.mfu or 0), rel=0.01)


def test_an_adapter_s_operations_are_its_own() -> None:
    study = found(workload=workload(task="causal-lm"))
    of = configuration(16, precision="bf16_frozen", lora="16", lora_targets="all_linear")
    key = adapter_key(of, study.environment, "causal-lm")
    assert '"r": 16' in key
    with_adapter = replace(KNOWN, samples={**KNOWN.samples, key: SampleFlops(0.67 * TERA)})
    study, one = replace(study, arithmetic=with_adapter), trial(2, 450.0, of=of)
    use = study.utilization(one)
    assert use is not None
    assert use.mfu == pytest.approx(0.67 * 450 / 989.5, rel=0.01)
    assert found().utilization(one) is None, "of an adapter that was not counted nothing is known"


def test_samples_of_many_lengths_count_as_they_were_trained_padding_included() -> None:
    study = found(
        workload=workload(sequence_length=96), arithmetic=replace(KNOWN, samples={"": SampleFlops(96.0, 48.0)})
    )
    best = study.best
    steps = tuple(replace(step, tokens=24 * step.samples) for step in best.measurement.steps)
    padded = replace(best, measurement=replace(best.measurement, steps=steps), confirmations=())
    use = study.utilization(padded)
    assert use is not None
    assert use.sample_flops == pytest.approx(24.0)


# Where it is shown --------------------------------------------------------------------------------------------------


def test_answer_summary_table_and_page_show_it_with_its_source_and_convention(tmp_path: Path) -> None:
    study = found()
    facts = study
    assert any(line.split()[:1] == ["MFU"] and " 45." in line for line in answer_lines(facts))
    use = study.utilization(study.best)
    assert use is not None
    assert "(MFU), 58% of the fastest" in use.text
    text = summary(facts)
    assert all(words in text for words in ("| MFU |", "NVIDIA H200 data sheet", "attention counted whole"))
    frame = study.to_frame().set_index("number")
    assert frame.loc[1, "mfu"] == pytest.approx(0.455, abs=0.005)
    assert frame.loc[0, "mfu"] == pytest.approx(40 / 67, abs=0.005)
    assert frame.loc[1, "measured_product_share"] == pytest.approx(450 / 780, abs=0.01)
    table = table_of(facts.trials, facts.utilizations)
    assert table.cell(1, "mfu").text.startswith("45.")
    assert "mfu" in [column.name for column in table.columns if column.usual]
    assert "TFLOP/s in bf16 (MFU)" in page(facts)
    loaded = TuningResult.load(study.save(tmp_path / "study"))
    assert loaded.utilization(loaded.best) == study.utilization(study.best)
