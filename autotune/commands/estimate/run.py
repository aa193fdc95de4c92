"""Memory forecast: the peak of each configuration, before any probe and without the device."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from autotune.core import Configuration, Environment, InvalidRequest, TuningRequest, Value, Workload
from autotune.core.configuration import RANKS
from autotune.core.errors import NothingFits
from autotune.core.gpus import CARDS, CardSpec, find_card, sizes_of
from autotune.core.note import Note, NoteKind
from autotune.core.random_state import kept_random_state
from autotune.core.request import MOST_DEVICES, EstimateOptions, accepts, tuning_request
from autotune.core.units import format_bytes
from autotune.memory.estimate import MemoryModel, NotTraced
from autotune.memory.keys import step_key, update_key
from autotune.memory.peak import MemoryPeak
from autotune.memory.sharding import NCCL_BYTES, sharding_of
from autotune.probe.process.launcher import HostSet
from autotune.probe.queries import read_environment, read_workload, traced
from autotune.report.exports import auto_class
from autotune.sampler.candidates import narrowed
from autotune.space.build import build_space, check_overrides
from autotune.space.search_space import RuledOut, SearchSpace
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.optimizer import NAMES
from autotune.space.settings.precision import ALIKE
from autotune.space.setup import check_fields, what_differs
from autotune.space.user_arguments import read_user_arguments
from autotune.workload.model.files import check_model

MOST = 5000
"""Largest number of configurations in a table."""


@dataclass(frozen=True)
class ForecastRow:
    """One peak, and the configurations that share it.

    settings: each setting that changes memory -> its values that need the same. peak: None if it could not be traced, for
    this reason.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    settings: Mapping[str, tuple[Value, ...]]
    peak: MemoryPeak | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            MICRO: self.micro_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "settings": {name: list(values) for name, values in self.settings.items()},
            "reason": self.reason,
            **(self.peak.to_dict() if self.peak else {}),
        }


@dataclass(frozen=True)
class Forecast:
    """Peaks of a search space, and what fits.

    limit_bytes: memory of the requested device, None if neither --memory-limit nor --gpu was given. allowed_bytes: limit
    less headroom. card: the requested GPU. model: estimates any other configuration with the same values.
    """

    workload: Workload
    global_batch_size: int
    rows: tuple[ForecastRow, ...]
    model: MemoryModel
    headroom: float
    limit_bytes: int | None = None
    card: CardSpec | None = None
    notes: tuple[Note, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()

    @property
    def allowed_bytes(self) -> int | None:
        return None if self.limit_bytes is None else int(self.limit_bytes * (1 - self.headroom))

    def fits(self, row: ForecastRow) -> bool:
        """True if there is a peak, and it is within the allowed bytes if there is a limit."""
        if row.peak is None:
            return False
        return self.allowed_bytes is None or row.peak.device_bytes <= self.allowed_bytes

    @property
    def fitting(self) -> tuple[ForecastRow, ...]:
        return tuple(row for row in self.rows if self.fits(row))

    def cards_for(self, row: ForecastRow) -> tuple[str, ...]:
        """The shipped GPUs that have the memory, less headroom, and one of the precisions; smallest memory first."""
        if row.peak is None:
            return ()
        precisions = set(map(str, row.settings.get("precision", ("fp32",))))
        return tuple(
            card.name
            for card in CARDS.values()
            if row.peak.device_bytes <= card.memory_bytes * (1 - self.headroom) and precisions & _precisions(card)
        )

    def check(self) -> None:
        """Raise NothingFits if there is a limit and no peak that is known is within it."""
        peaks, more = self._peaks(), "name a larger --gpu" if self.card else "raise --memory-limit"
        if self.allowed_bytes is not None and peaks and not self.fitting:
            raise NothingFits(
                f"Nothing fits into {format_bytes(self.allowed_bytes)} ({format_bytes(self.limit_bytes)} less headroom): "
                f"the smallest of {len(peaks)} needs {format_bytes(min(peaks))}.",
                f"Try --search-space=lora (adapters) or --search-space=small-gpu, {more}, shorten --sequence-length, or choose "
                "a smaller model.",
            )

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads the model for its task."""
        return auto_class(self.workload.task)

    def _peaks(self) -> list[int]:
        return [row.peak.device_bytes for row in self.rows if row.peak]

    def __repr__(self) -> str:
        """One line: what fits, and the range of the peaks."""
        device = f"{self.card.name}, " if self.card else ""
        limit = "" if self.allowed_bytes is None else f" fit into {device}{format_bytes(self.allowed_bytes)}"
        peaks = self._peaks()
        span = f", from {format_bytes(min(peaks))} to {format_bytes(max(peaks))}" if peaks else ""
        head = f"{self.workload.name} as {self.auto_class}, global batch {self.global_batch_size}"
        return f"<Forecast {head}: {len(self.fitting)} of {len(self.rows)} peaks{limit}{span}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints; sizes in bytes."""
        rows = [
            row.to_dict()
            | {"fits": self.fits(row) if self.limit_bytes is not None else None, "cards": list(self.cards_for(row))}
            for row in self.rows
        ]
        return {
            "model": self.workload.name,
            "task": self.workload.task,
            "auto_class": self.auto_class,
            "sequence_length": self.workload.sequence_length,
            "parameters": self.workload.parameters,
            "global_batch_size": self.global_batch_size,
            "card": self.card.to_dict() if self.card else None,
            "limit_bytes": self.limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "headroom": self.headroom,
            "rows": rows,
            "notes": [note.to_dict() for note in self.notes],
            "ruled_out": [value.to_dict() for value in self.ruled_out],
        }


@kept_random_state()
@accepts(EstimateOptions)
def estimate(model: str | os.PathLike[str], global_batch_size: int, **options: Unpack[EstimateOptions]) -> Forecast:
    """Estimate the memory that each configuration needs, from the model's config alone; the options of `autotune estimate`.

    Args:
        model: As in `autotune.search`.
        global_batch_size: Samples in one optimizer step, over all ranks.
        **options: Each as a keyword. Any `device` but `cpu` is a CUDA device, which need not be in this machine.
        {options}

    Raises:
        InvalidRequest: Options are wrong or contradict each other.
        ProbeHostFailed: The process that traces the model cannot start.
        TracingFailed: The model's step cannot be traced.
    """
    gpu, ranks = options.pop("gpu", None), options.pop("ranks", None)
    if options.get("memory_limit") is not None and gpu is not None:
        raise InvalidRequest("Both --memory-limit and --gpu are given.", "Pass only one of them.")
    card = find_card(gpu) if gpu is not None else None
    own = read_user_arguments(options.pop("args", None))
    request = tuning_request(model, global_batch_size, args=own.fields, **{"device": "cuda", **options})
    if ranks is not None:
        if RANKS in request.fix:
            raise InvalidRequest(f"Both --ranks and --fix {RANKS} are given.", "Pass only one of them.")
        request = replace(request, fix={**request.fix, RANKS: ranks})
    return _forecast(request, own.source, card)


def _forecast(request: TuningRequest, source: str, card: CardSpec | None) -> Forecast:
    """source: of the user's arguments, for messages."""
    base = request.training_args
    check_overrides(request)
    if card is not None and request.device == "cpu":
        raise InvalidRequest("--gpu and --device=cpu contradict each other.", "Pass only one of them.")
    check_model(request.model)
    with HostSet() as host:
        here, _ = read_environment(host, replace(request, device="cpu"), None)
        check_fields(base, here, source)
        base = what_differs(base, here)
        request = replace(request, training_args=base)
        workload = read_workload(host, request)
        environment = here if request.device == "cpu" else environment_with(here, card)
        space = build_space(request, environment, workload, base)
        configurations = _configurations(space)
        model = traced(host, workload, environment, configurations, base)
    return Forecast(
        workload,
        request.global_batch_size,
        tuple(_rows(model, configurations, environment, base)),
        model,
        request.headroom,
        card.memory_bytes if card else request.memory_limit_bytes,
        card,
        (*_size_note(card), *_notes(workload, environment, space, model)),
        tuple(value for value in space.ruled_out if SETTINGS[value.setting].costs.memory),
    )


def _configurations(space: SearchSpace) -> list[Configuration]:
    """All configurations, of a large space those that differ in memory; raises InvalidRequest for too many."""
    baseline = space.baseline.values
    if space.size > MOST:
        kept = {name: baseline[name] for name in space.values if not SETTINGS[name].costs.memory}
        space = narrowed(space, kept)
    if space.size > MOST:
        raise InvalidRequest(
            f"The space {space.name} has {space.size} configurations that differ in memory: too many for a table.",
            "Name another --search-space, or fix settings with --fix.",
        )
    return list(space)


def environment_with(here: Environment, card: CardSpec | None) -> Environment:
    """This machine's software with the GPU's abilities, or without one those of a recent GPU; as many GPUs as ranks need.

    Its memory is left out: what fits is asked, and no setting is ruled out for it.
    """
    capability = card.compute_capability if card else (8, 0)
    precisions = map(str, SETTINGS["precision"].values)
    reasons = {
        name: f"{card.name} has no {name}" if card and name not in _precisions(card) else None for name in precisions
    }
    return replace(
        here,
        device="cuda:0",
        device_name=card.name if card else "a CUDA device",
        total_memory_bytes=0,
        free_memory_bytes=0,
        device_count=MOST_DEVICES,
        compute_capability=capability,
        context_bytes=0,
        context_source="",
        cpu_count=max(here.cpu_count, 16),
        versions={**here.versions, "deepspeed": here.versions.get("deepspeed", "")},
        precisions=reasons,
        optimizers=dict.fromkeys(NAMES),
    )


def _precisions(card: CardSpec) -> set[str]:
    """Values of the setting precision that the GPU has units for: weights in bfloat16 need those of bfloat16."""
    return {*card.flops, *(value for value, unit in ALIKE.items() if unit in card.flops)}


def _rows(
    model: MemoryModel, configurations: list[Configuration], environment: Environment, base: Mapping[str, Any]
) -> Iterator[ForecastRow]:
    """A row for each distinct memory need, with all the values that share it."""
    groups: dict[Any, list[Configuration]] = {}
    for configuration in configurations:
        sizes = (configuration.micro_batch_size, configuration.data_parallel_size)
        keys = (step_key(configuration, environment), update_key(configuration, environment, base))
        sharding = sharding_of(configuration, environment, base)
        groups.setdefault((sizes, keys, sharding), []).append(configuration)
    for group in groups.values():
        first = group[0]
        names = [name for name, _ in first.settings if SETTINGS[name].costs.memory]
        settings = {name: tuple(dict.fromkeys(member.values[name] for member in group)) for name in names}
        peak, reason = None, ""
        try:
            peak = model.peak(first)
        except NotTraced as error:
            reason = str(error)
        yield ForecastRow(first.micro_batch_size, first.gradient_accumulation_steps, settings, peak, reason)


def _size_note(card: CardSpec | None) -> list[Note]:
    """The memory size that was taken of a GPU that exists with several."""
    sizes = sizes_of(card) if card else ()
    if card is None or len(sizes) < 2:
        return []
    text = f"{card.name}, of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} GB"
    return [Note(NoteKind.GPU_MEMORY, {"gigabytes": card.gigabytes}, text)]


def _notes(workload: Workload, environment: Environment, space: SearchSpace, model: MemoryModel) -> list[Note]:
    notes = [*model.notes, *space.notes]
    if environment.is_cpu:
        notes.append(Note(NoteKind.ALLOCATED))
    else:
        notes += [Note(NoteKind.WORKSPACES), Note(NoteKind.CACHED)]
    if any(int(ranks) > 1 for ranks in space.values.get(RANKS, ())):
        notes.append(Note(NoteKind.ONE_RANK, {"nccl_bytes": NCCL_BYTES}))
    if workload.data:
        notes.append(Note(NoteKind.LONGEST))
    return [*{str(note): note for note in notes}.values()]
