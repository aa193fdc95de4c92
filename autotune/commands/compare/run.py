"""Several studies side by side: models, cards, versions; what each found, and what it costs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.commands.result import TuningResult
from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.interval import Interval, quotient_of_means
from autotune.core.paths import named
from autotune.core.trial import Trial
from autotune.core.units import parse_price
from autotune.core.workload import Workload
from autotune.report.columns import FIRST
from autotune.report.summary import warnings
from autotune.space.utilization import Utilization
from autotune.study.identity import NOT_THE_MODEL
from autotune.study.objective import best_trial
from autotune.study.store import study_folder

if TYPE_CHECKING:
    import pandas as pd

Study = TuningResult | str | Path
Price = tuple[float, str]
"""Amount an hour, and its currency (empty where none was named)."""

DECIDE_SPEED = ("torch", "transformers", "accelerate")
MILLION, HOUR_S = 1e6, 3600.0


def compare(
    studies: Study | Iterable[Study],
    price_per_hour: float | str | Mapping[str, float | str] | None = None,
    output: str | Path | None = None,
    output_dir: str | Path = "reports",
) -> "pd.DataFrame":
    """One row a study, in the order given; columns, dtypes and units as `autotune.commands.compare.columns` documents them.

    studies: results, report folders, or names of studies in `output_dir`. price_per_hour: of all that a study trained on,
    as 2.5, "2.50 EUR" or "$2.50"; one for every study, or study -> price. output: a folder for table (CSV, Parquet,
    Markdown) and picture. Speeds of different studies are put into proportion where their work is the same: model
    config, task, sequence length, data and global batch size.

    Raises InvalidRequest for a study that is not there, a price that is none or names no study; StorageFailed.
    """
    from autotune.commands.compare.columns import compared_frame
    from autotune.commands.compare.files import write_compared

    for price in price_per_hour.values() if isinstance(price_per_hour, Mapping) else (price_per_hour,):
        if price is not None:
            _price(price)
    studies = [studies] if isinstance(studies, (str, Path, TuningResult)) else list(studies)
    results = [
        one if isinstance(one, TuningResult) else TuningResult.load(study_folder(str(one), str(output_dir)))
        for one in studies
    ]
    if not results:
        raise InvalidRequest("There is no study to compare.", "Name one or more; `autotune studies` lists them.")
    names = _names(results)
    typed = {str(one): name for one, name in zip(studies, names, strict=True) if not isinstance(one, TuningResult)}
    prices = _prices(price_per_hour, typed | {name: name for name in names})
    rows = [_row(name, result, prices.get(name)) for name, result in zip(names, results, strict=True)]
    for place, row in enumerate(rows):
        row |= _beside_others(place, names, results)
    table = compared_frame(rows)
    if output is not None:
        write_compared(Path(output), table)
    return table


def _names(results: Sequence[TuningResult]) -> list[str]:
    """The folders' names; of those that are alike with the folder above, and at last with a number."""
    alone = [one.folder.absolute().name if one.folder else one.name for one in results]
    names = [
        "/".join(one.folder.absolute().parts[-2:]) if one.folder and alone.count(name) > 1 else name
        for name, one in zip(alone, results, strict=True)
    ]
    return [
        f"{name} ({names[:place].count(name) + 1})" if name in names[:place] else name
        for place, name in enumerate(names)
    ]


def _prices(given: float | str | Mapping[str, float | str] | None, names: Mapping[str, str]) -> dict[str, Price]:
    """Name of a study -> its price; names: what people may call a study -> its name."""
    if given is None:
        return {}
    every = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if unknown := [name for name in every if name not in names]:
        raise InvalidRequest(f"A price names {unknown[0]!r}, which is not compared.", did_you_mean(unknown[0], names))
    return {names[name]: _price(price) for name, price in every.items()}


def _price(text: float | str) -> Price:
    try:
        return parse_price(text)
    except ValueError as error:
        said, _, advice = str(error).partition("; ")
        raise InvalidRequest(f"The price cannot be read: {said}.", f"{advice[:1].upper()}{advice[1:]}.") from error


def _row(name: str, result: TuningResult, price: Price | None) -> dict[str, Any]:
    workload, environment = result.workload, result.environment
    best, baseline = result.best_trial, result.baseline_trial
    every = [one for trial in result.trials for one in (trial.measurement, *trial.confirmations)]
    versions = {one: environment.versions[one] for one in DECIDE_SPEED if one in environment.versions}
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
        "versions": ", ".join(f"{one} {version}" for one, version in versions.items()),
        "trials": len(result.trials),
        "probes": len(every),
        "probe_seconds": sum(trial.probe_seconds for trial in result.trials),
        "allowed_bytes": result.allowed_bytes,
        "baseline_configuration": str(baseline.configuration) if baseline else "",
        **_speed("baseline", baseline, price, result.utilizations),
        "best_trial": best and best.number,
        "best_configuration": str(best.configuration) if best else "",
        "best_unlike_baseline": best.configuration.unlike(baseline.configuration if baseline else None) if best else "",
        **_speed("best", best, price, result.utilizations),
        "confirmed": best is not None and best.confirmed,
        **_interval("speedup", result.measured_speedup),
        "why_no_speedup": result.speedup_reason,
        "price_per_hour": price and price[0],
        "currency": price[1] if price else "",
        "warnings": "; ".join(warnings(result)),
    }


def _speed(
    kind: str, trial: Trial | None, price: Price | None, utilization: Mapping[int, Utilization]
) -> dict[str, Any]:
    use = utilization.get(trial.number) if trial and trial.feasible else None
    speed = trial.samples_per_second if trial and trial.feasible else None
    return {
        **_interval(f"{kind}_samples_per_second", speed),
        f"{kind}_peak_bytes": trial and trial.peak_bytes,
        f"{kind}_mfu": use and use.mfu,
        f"{kind}_cost_per_million_samples": price[0] / HOUR_S / speed.value * MILLION if price and speed else None,
    }


def _interval(name: str, value: Interval | None) -> dict[str, float | None]:
    ends = (value.value, value.low, value.high) if value is not None else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


# One study beside another ---------------------------------------------------------------------------------------------


def _beside_others(place: int, names: Sequence[str], results: Sequence[TuningResult]) -> dict[str, Any]:
    """Times as fast as the first study of the same work; else why there is no such number."""
    mine, told = results[place], {"compared_with": "", "why_not_compared": ""}
    own = _best_speed(mine)
    if own is None:
        return told | {"why_not_compared": "nothing fits"}
    for name, other in zip(names[:place], results[:place], strict=True):
        speed = _best_speed(other)
        if speed is not None and not different_work(other, mine):
            return told | {"compared_with": name} | _interval("times_as_fast", quotient_of_means(own, speed))
    if place == 0:
        return told | {"why_not_compared": FIRST}
    reasons = ", ".join(different_work(results[0], mine)) or "nothing fits there"
    return told | {"why_not_compared": f"against {names[0]}: {reasons}"}


def _best_speed(result: TuningResult) -> Interval | None:
    best = best_trial(result.trials, result.request.objective)
    return best.samples_per_second if best else None


def different_work(one: TuningResult, other: TuningResult) -> list[str]:
    """In what the work of two studies differs, in words; empty where it is the same."""
    said = [] if _same_model(one, other) else ["another model config"]
    said += [] if _same_share_learns(one.workload, other.workload) else ["another share of the model learns"]
    pairs = {
        "task": (one.workload.task, other.workload.task),
        "sequence length": (one.workload.sequence_length, other.workload.sequence_length),
        "global batch size": (one.request.global_batch_size, other.request.global_batch_size),
    }
    said += [f"{what} {here} instead of {there}" for what, (there, here) in pairs.items() if here != there]
    return said if _data(one) == _data(other) else [*said, "other data"]


def _same_model(one: TuningResult, other: TuningResult) -> bool:
    """By config and number of parameters. Versions of transformers write different fields into one config: of two, those
    that both know decide. Models without a config (of a `model_init`) are never known to be the same."""
    here, there = one.workload.model_config, other.workload.model_config
    same_version = one.environment.versions.get("transformers") == other.environment.versions.get("transformers")
    fields = (here.keys() | there.keys() if same_version else here.keys() & there.keys()) - NOT_THE_MODEL
    return (
        bool(fields)
        and one.workload.parameters == other.workload.parameters
        and all(here.get(name) == there.get(name) for name in fields)
    )


def _same_share_learns(one: Workload, other: Workload) -> bool:
    """Bytes of gradients against bytes of weights: as many of either dtype."""
    return one.gradient_bytes * other.parameter_bytes == other.gradient_bytes * one.parameter_bytes


def _data(result: TuningResult) -> tuple[str, str]:
    """What tells data apart: the data, and of text that is not made up also who made tokens of it."""
    workload = result.workload
    return workload.data_identity, workload.text_source if workload.data_identity != "synthetic" else ""


__all__ = ["compare", "different_work"]
