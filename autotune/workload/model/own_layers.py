"""What a caller's own model is made of, as far as no config says it: layers, which parameters learn, hooks and patches."""

import hashlib
from typing import Any

from autotune.workload.model.rebuild import hooks_of, own_forward, package_of

COMES_WITH_TRAINING = ("accelerate", "transformers")
"""Packages that leave hooks and patches of their own on a model that has been trained: it is the same model."""


def layers_digest(model: Any) -> str:
    """Sixteen digits that are the same in every process, and others where a layer, its attention, what it was patched with,
    or the shape, dtype or learning of a parameter is another."""
    layers = [(name, _name(one), _attention(one), _changes(one)) for name, one in model.named_modules()]
    parameters = [(name, tuple(one.shape), str(one.dtype), one.requires_grad) for name, one in model.named_parameters()]
    return hashlib.sha256(repr((layers, parameters)).encode()).hexdigest()[:16]


def _changes(layer: Any) -> list[str]:
    patches = [one for one in (own_forward(layer), *hooks_of(layer)) if one is not None]
    return [_name(one) for one in patches if package_of(one) not in COMES_WITH_TRAINING]


def _attention(layer: Any) -> str:
    """A model of several models has one for each."""
    return str(getattr(getattr(layer, "config", None), "_attn_implementation", None) or "")


def _name(one: Any) -> str:
    return str(getattr(one, "__qualname__", type(one).__qualname__))
