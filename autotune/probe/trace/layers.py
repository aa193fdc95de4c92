"""Repeated layers of a model: the lists that can be shortened, and the fields of the config that set their lengths."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from autotune.memory.trace import TRACED_LAYERS
from autotune.workload.model.build import model_outline

FEWEST = TRACED_LAYERS[-1]
"""Layers from which on a list is shortened."""


@dataclass(frozen=True)
class Repeats:
    """The lists of a model that can be shortened.

    places: name of each list in the model; counts: its layers in the whole model. fields: of the config that set them:
    (names of the configs on the way, field).
    """

    places: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    fields: tuple[tuple[tuple[str, ...], str], ...] = ()

    def config(self, config: Any, layers: int) -> Any:
        """A copy of the config with this number of layers in each list."""
        short = copy.deepcopy(config)
        for path, name in self.fields:
            _set(short, path, name, layers)
        return short

    def lists(self, model: Any) -> list[Any]:
        """The lists themselves, in a model of the whole or the shortened config."""
        return [model.get_submodule(place) for place in self.places]


def find_repeats(config: Any, outline: Any, task: str, trust_remote_code: bool = False) -> Repeats:
    """Lists of like layers whose length a single field of the config sets. outline: the model without storage."""
    left = _like_lists(outline)
    repeats = Repeats()
    candidates = sorted(_counts(config), key=lambda count: ("layer" not in count[1], "depth" not in count[1]))
    for path, name, count in candidates:
        if count not in left.values():
            continue
        short = copy.deepcopy(config)
        try:
            _set(short, path, name, TRACED_LAYERS[0])
            lengths = _lengths(model_outline(short, task, trust_remote_code))
        except Exception:
            continue  # the field means something else
        now = {key: count for key, count in left.items() if lengths.get(key) == TRACED_LAYERS[0]}
        changed = {key for key, count in _lengths(outline).items() if lengths.get(key) not in (count, None)}
        if now and changed <= set(now):
            left = {key: length for key, length in left.items() if key not in now}
            fields = (*repeats.fields, (path, name))
            repeats = Repeats((*repeats.places, *now), (*repeats.counts, *now.values()), fields)
    return repeats


def units_of(outline: Any) -> dict[str, int]:
    """Fields of `Units`: numbers in the weights that FSDP gathers together.

    As accelerate makes its units: the layers by the model's `_no_split_modules`, the embedding, the output.
    """
    names = getattr(outline, "_no_split_modules", None) or ()
    ends = [_embeddings(outline, end) for end in ("input", "output")]
    units = [module for module in outline.modules() if type(module).__name__ in names]
    layers = [_numbers(module) for module in units if all(part is not ends[0] for part in module.modules())]
    total = _numbers(outline)
    config = getattr(outline, "config", None)
    width = getattr(config.get_text_config() if config is not None else None, "hidden_size", 0)
    return {
        "layer": max(layers, default=total),
        "outside": max((_numbers(module) for module in ends if module is not None), default=0),
        "all": total,
        "width": int(width or 0),
    }


def _embeddings(outline: Any, end: str) -> Any:
    """The module of the input's or output's embeddings; None if the model does not name it, for which transformers raises."""
    with contextlib.suppress(NotImplementedError):
        return getattr(outline, f"get_{end}_embeddings", lambda: None)()
    return None


def _numbers(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _counts(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Integers of the config that could be a number of layers: (configs on the way, field, number)."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from _counts(value, (*path, name))
        elif isinstance(value, int) and not isinstance(value, bool) and value >= FEWEST:
            yield path, name, value


def _set(config: Any, path: tuple[str, ...], name: str, layers: int) -> None:
    for step in path:
        config = getattr(config, step)
    value = getattr(config, name)
    for other, values in vars(config).items():
        if isinstance(values, (list, tuple)) and len(values) == value:
            longer = [*values, *[values[-1]] * layers] if values else []
            setattr(config, other, type(values)(longer[:layers]))
    setattr(config, name, layers)


def _like_lists(model: Any) -> dict[str, int]:
    """Name -> length of the outermost lists whose layers but the first and the last are of one kind."""

    def alike(layers: torch.nn.ModuleList) -> bool:
        return len(layers) >= FEWEST and len({_kind(layer) for layer in list(layers)[1:-1]}) == 1

    return _lengths(model, alike)


def _lengths(model: Any, counts: Callable[[torch.nn.ModuleList], bool] = lambda _: True) -> dict[str, int]:
    """Name -> length of the lists of layers that count and are not inside another one of them."""
    lengths: dict[str, int] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in lengths)
        if isinstance(module, torch.nn.ModuleList) and not inside and counts(module):
            lengths[name] = len(module)
    return lengths


def _kind(layer: Any) -> tuple[Any, ...]:
    """Properties that like layers share: classes, shapes and kind of attention."""
    classes = tuple(type(module).__name__ for module in layer.modules())
    shapes = tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())
    attention = tuple(
        str(getattr(module, name, None))
        for module in layer.modules()
        for name in ("attention_type", "layer_type", "sliding_window")
    )
    return classes, shapes, attention
