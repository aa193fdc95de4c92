"""Comparison of two values by what they hold, and the parts of functions that decide what they do."""

import dis
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object holds, in its `__dict__` and in slots."""
    kinds = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    slots = [name for kind in kinds for name, part in kind.items() if isinstance(part, types.MemberDescriptorType)]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


def parts_of_call(function: Any) -> tuple[Any, ...]:
    """Objects that decide what a function, method or partial does: for a function first the values of its closure."""
    if isinstance(function, types.MethodType):
        return function.__func__, function.__self__
    if isinstance(function, functools.partial):
        return function.func, function.args, function.keywords
    return tuple(map(content, function.__closure__ or ())), function.__code__, _defaults(function)


def _defaults(function: types.FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def function_of(member: Any) -> Any:
    """The function of a property, class method or static method; else the member itself."""
    return getattr(member, "fget", None) or getattr(member, "__func__", member)


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function reads, by name; none of a library's function."""
    scope = function.__globals__
    if of_library(str(scope.get("__name__"))):
        return {}
    return {name: scope[name] for name in _names(function.__code__) if name in scope}


def _names(code: types.CodeType) -> set[str]:
    """Names of globals that code, and the functions within it, read."""
    names = {str(item.argval) for item in dis.get_instructions(code) if item.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def content(cell: Any) -> Any:
    """The value of a variable of a closure; None before it has one."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.cache
def of_library(module: str) -> bool:
    """True if the module of this name is Python's or of an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module in sys.builtin_module_names or module in sys.stdlib_module_names
    return str(file).startswith(
        tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    )


# Comparison --------------------------------------------------------------------------------------------------------


class Comparison:
    """Comparison of values by their contents, in which the objects of each pair count as equal."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._kept = list(pairs)
        self._pairs = {(id(ours), id(other)) for ours, other in self._kept}

    def same(self, ours: Any, other: Any) -> bool:
        """True for equal values or contents. An object without visible contents, as a lock, equals any of its type."""
        import torch

        if ours is other or (id(ours), id(other)) in self._pairs:
            return True
        if type(ours) is not type(other):
            return False
        if isinstance(ours, torch.Tensor):
            return _same_tensor(ours, other)
        if equal(ours, other):
            return True
        self._pairs.add((id(ours), id(other)))  # met again within itself
        self._kept.append((ours, other))
        same = self._holds_the_same(ours, other)
        if not same:
            self._pairs.discard((id(ours), id(other)))
        return same

    def differing(self, ours: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
        """Names of which only one has a value, or whose values differ."""
        both = ours.keys() & others.keys()
        return [name for name in {**ours, **others} if name not in both or not self.same(ours[name], others[name])]

    def _holds_the_same(self, ours: Any, other: Any) -> bool:
        if isinstance(ours, (types.FunctionType, types.MethodType, functools.partial)):
            return self.same(parts_of_call(ours), parts_of_call(other))
        if isinstance(ours, Mapping):
            if ours.keys() != other.keys() or self.differing(ours, other):
                return False
        elif isinstance(ours, (list, tuple, deque)):
            if len(ours) != len(other) or not all(map(self.same, ours, other)):
                return False
        elif cast(Any, type(ours)).__eq__ is not object.__eq__ and not hasattr(ours, "__dict__"):
            return False  # numbers, texts, sets: their comparison was final
        return not self.differing(attributes_of(ours), attributes_of(other))


def equal(ours: Any, other: Any) -> bool:
    """Result of `==`; False if that is not a yes or no."""
    try:
        same = ours == other
        return bool(same.all() if hasattr(same, "all") else same)
    except Exception:  # whatever an object's comparison raises
        return False


def _same_tensor(ours: "torch.Tensor", other: "torch.Tensor") -> bool:
    import torch

    if (ours.shape, ours.dtype) != (other.shape, other.dtype):
        return False
    return bool(ours.is_meta or other.is_meta or torch.equal(ours.cpu(), other.cpu()))
