"""Comparison of studies: models, devices, versions, results and costs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.commands.compare.columns import compared_frame
from autotune.commands.result import TuningResult
from autotune.core import Interval, InvalidRequest, Trial, Workload
from autotune.core.errors import did_you_mean
from autotune.core.interval import quotient_of_means
from autotune.core.paths import named
from autotune.core.units import NotReadable, parse_price
from autotune.report.checks import warnings
from autotune.report.claim import claim_fields
from autotune.report.columns import FIRST
from autotune.report.files import write_table
from autotune.report.trial_text import interval_columns
from autotune.space.utilization import Utilization
from autotune.study.identity import NOT_THE_MODEL
from autotune.study.store import study_folder

if TYPE_CHECKING:
    import pandas as pd

Price = tuple[float, str]
"""Amount an hour, and its currency (empty if none was named)."""

LIBRARIES = ("torch", "transformers", "accelerate")
MILLION, HOUR_S = 1e6, 3600.0


def compare(
    studies: TuningResult | str | Path | Iterable[TuningResult | str | Path],
    price_per_hour: float | str | Mapping[str, float | str] | None = None,
    output: str | Path | None = None,
    output_dir: str | Path = "reports",
) -> "pd.DataFrame":
    """One row a study, in the order given; columns, dtypes and units as `autotune.commands.compare.columns` documents them.

    Speeds of two studies are divided if their work is the same: model config, task, sequence length, data and global batch
    size.

    Args:
        studies: Results, report folders, or names of studies in `output_dir`.
        price_per_hour: Of the hardware of a study, as 2.5, "2.50 EUR" or "$2.50"; one for all studies, or study -> price.
        output: A file for the table, as it ends: .csv, .parquet, .jsonl or .md.
        output_dir: The folder of the studies that are named.

    Raises:
        InvalidRequest: A study is missing, a price is unreadable or of no study, or the output ends otherwise.
        StorageFailed: The output cannot be written.
    """
    for price in price_per_hour.values() if isinstance(price_per_hour, Mapping) else (price_per_hour,):
        if price is not None:
            _price(price)
    studies = [studies] if isinstance(studies, (str, Path, TuningResult)) else list(studies)
    results = [
        study if isinstance(study, TuningResult) else TuningResult.load(study_folder(str(study), str(output_dir)))
        for study in studies
    ]
    if not results:
        raise InvalidRequest("There is no study to compare.", "Name one or more: run `autotune studies` to list them.")
    names = _names(results)
    given = {str(study): name for study, name in zip(studies, names, strict=True)} | {name: name for name in names}
    prices = _prices(price_per_hour, given)
    rows = [_row(name, result, prices.get(name)) for name, result in zip(names, results, strict=True)]
    for index, row in enumerate(rows):
        row |= _relative_speed(index, names, results)
    table = compared_frame(rows)
    if output is not None:
        write_table(Path(output), table)
    return table


def _names(results: Sequence[TuningResult]) -> list[str]:
    """Names of the folders; equal ones with the folder above, and still equal ones with a number."""
    alone = [result.folder.absolute().name if result.folder else result.name for result in results]
    names = [
        "/".join(result.folder.absolute().parts[-2:]) if result.folder and alone.count(name) > 1 else name
        for name, result in zip(alone, results, strict=True)
    ]
    return [
        f"{name} ({names[:index].count(name) + 1})" if name in names[:index] else name
        for index, name in enumerate(names)
    ]


def _prices(given: float | str | Mapping[str, float | str] | None, names: Mapping[str, str]) -> dict[str, Price]:
    """Name of a study -> its price. names: what the caller may call a study -> its name."""
    if given is None:
        return {}
    prices = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if unknown := [name for name in prices if name not in names]:
        raise InvalidRequest(f"A price names {unknown[0]!r}, which is not compared.", did_you_mean(unknown[0], names))
    return {names[name]: _price(price) for name, price in prices.items()}


def _price(text: float | str) -> Price:
    try:
        return parse_price(text)
    except NotReadable as error:
        raise InvalidRequest(f"The price cannot be read: {error.cause}.", error.advice) from error


def _row(name: str, result: TuningResult, price: Price | None) -> dict[str, Any]:
    workload, environment, claim = result.workload, result.environment, claim_fields(result)
    best, baseline = result.best_trial, result.baseline_trial
    probes = sum(1 + len(trial.confirmations) for trial in result.trials)
    versions = {name: environment.versions[name] for name in LIBRARIES if name in environment.versions}
    versions |= {"driver": environment.driver} if environment.driver else {}
    return {
        "study": name,
        "model": named(workload.name),
        "task": workload.task,
        "sequence_length": workload.sequence_length,
        "global_batch_size": result.request.global_batch_size,
        "objective": result.request.objective,
        "device": environment.device,
        "device_name": environment.device_name,
        "data_parallel_size": best and best.configuration.data_parallel_size,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "trials": len(result.trials),
        "probes": probes,
        "probe_seconds": sum(trial.probe_seconds for trial in result.trials),
        "allowed_bytes": result.allowed_bytes,
        "baseline_configuration": str(baseline.configuration) if baseline else "",
        **_speed("baseline", baseline, price, result.utilizations),
        "best_trial": best and best.number,
        "why_no_best": result.why_no_best,
        "best_configuration": str(best.configuration) if best else "",
        "best_unlike_baseline": best.configuration.unlike(baseline.configuration if baseline else None) if best else "",
        **_speed("best", best, price, result.utilizations),
        "confirmed": best is not None and result.standing.is_shown(best),
        "state": claim["state"],
        "verdict": claim["verdict"] or "",
        **interval_columns("speedup", result.measured_speedup),
        **({} if result.changes_settings else {"speedup_low": None, "speedup_high": None}),
        "why_no_speedup": result.speedup_reason,
        "price_per_hour": price and price[0],
        "currency": price[1] if price else "",
        "warnings": "; ".join(map(str, warnings(result))),
    }


def _speed(
    kind: str, trial: Trial | None, price: Price | None, utilization: Mapping[int, Utilization]
) -> dict[str, Any]:
    use = utilization.get(trial.number) if trial and trial.feasible else None
    speed = trial.samples_per_second if trial and trial.feasible else None
    cost = price[0] / HOUR_S / speed.value * MILLION if price and speed and not speed.is_vague else None
    return {
        **interval_columns(f"{kind}_samples_per_second", speed),
        f"{kind}_peak_bytes": trial and trial.peak_bytes,
        f"{kind}_mfu": use and use.mfu,
        f"{kind}_cost_per_million_samples": cost,
    }


# Relative speed ---------------------------------------------------------------------------------------------------


def _relative_speed(index: int, names: Sequence[str], results: Sequence[TuningResult]) -> dict[str, Any]:
    """Speed over that of the first study of the same work; else the reason why there is none."""
    result, fields = results[index], {"compared_with": "", "why_not_compared": ""}
    speed = _best_speed(result)
    if speed is None:
        return fields | {"why_not_compared": result.why_no_best}
    for name, other in zip(names[:index], results[:index], strict=True):
        other_speed = _best_speed(other)
        if other_speed is not None and not different_work(other, result):
            ratio = quotient_of_means(speed, other_speed)
            return fields | {"compared_with": name} | interval_columns("times_as_fast", ratio)
    if index == 0:
        return fields | {"why_not_compared": FIRST}
    reasons = ", ".join(different_work(results[0], result)) or f"{results[0].why_no_best} there"
    return fields | {"why_not_compared": f"against {names[0]}: {reasons}"}


def _best_speed(result: TuningResult) -> Interval | None:
    best = result.best_trial
    return best.samples_per_second if best else None


def different_work(first: TuningResult, second: TuningResult) -> list[str]:
    """Differences between the work of two studies, in words; empty if it is the same."""
    before, after = first.workload, second.workload
    pairs = {
        "task": (before.task, after.task),
        "sequence length": (before.sequence_length, after.sequence_length),
        "global batch size": (first.request.global_batch_size, second.request.global_batch_size),
    }
    # Bytes of gradients over bytes of weights: as many in any dtype.
    learns = before.gradient_bytes * after.parameter_bytes == after.gradient_bytes * before.parameter_bytes
    return [
        *([] if _same_model(first, second) else ["another model config"]),
        *([] if learns else ["another share of the model learns"]),
        *(f"{what} {here} instead of {there}" for what, (there, here) in pairs.items() if here != there),
        *([] if _data(before) == _data(after) else ["other data"]),
    ]


def _same_model(first: TuningResult, second: TuningResult) -> bool:
    """Identity of a model by config and number of parameters; models without a config (of a `model_init`) are never the same.

    Versions of transformers write different fields into one config: of two versions, the fields of both count.
    """
    before, after = first.workload.model_config, second.workload.model_config
    same_version = first.environment.versions.get("transformers") == second.environment.versions.get("transformers")
    fields = (before.keys() | after.keys() if same_version else before.keys() & after.keys()) - NOT_THE_MODEL
    return (
        bool(fields)
        and first.workload.parameters == second.workload.parameters
        and all(before.get(name) == after.get(name) for name in fields)
    )


def _data(workload: Workload) -> tuple[str, str]:
    """Identity of the data, with its tokenizer unless it is synthetic."""
    return workload.data_identity, workload.text_source if workload.data_identity != "synthetic" else ""
