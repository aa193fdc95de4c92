"""Values that refer to a Trainer, for another Trainer: objects that lead to it are copied, all others are shared."""

import builtins
import copy
import dis
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.core.errors import InvalidRequest

_LEAVES = (str, bytes, int, float, complex, types.ModuleType, types.CodeType, type(None))


def rebound(value: Any, places: Iterable[tuple[Any, Any]], refused: Mapping[str, Any] | None = None) -> Any:
    """The value with the second object of each pair in the place of the first.

    Functions, methods, containers and objects that lead to one of them are copied; everything else is shared: the variables
    of closures, the globals of functions. refused: objects that nothing may lead to, by name; if given, classes that lead to
    a first object are refused too. Raises InvalidRequest for these, and for functions that assign globals and read one that
    leads there.
    """
    return _Rebinding(places, refused).of(value)


class _Rebinding:
    def __init__(self, places: Iterable[tuple[Any, Any]], refused: Mapping[str, Any] | None) -> None:
        self._places = list(places)
        self._copies = {id(old): new for old, new in self._places}
        self._refused = {id(part): name for name, part in (refused or {}).items()}
        self._classes = refused is not None
        self._leading = {*self._copies, *self._refused}

    def of(self, root: Any) -> Any:
        """Find the objects that lead to these, from them back to the root, then copy them."""
        parents: dict[int, list[int]] = {}
        reached, stack = dict[int, Any](), [root]
        while stack:
            value = stack.pop()
            if id(value) in reached or id(value) in self._leading:
                continue
            reached[id(value)] = value  # kept: its identity stays unique
            for inner in inside(value, self._classes):
                if not isinstance(inner, _LEAVES):
                    parents.setdefault(id(inner), []).append(id(value))
                    stack.append(inner)
        queue = [*self._leading]
        while queue:
            before = [key for key in parents.get(queue.pop(), ()) if key not in self._leading]
            self._leading.update(before)
            queue += before
        return self._copied(root)

    def _copied(self, value: Any) -> Any:
        key = id(value)
        if key in self._copies or key not in self._leading:
            return self._copies.get(key, value)
        if key in self._refused:
            raise InvalidRequest(
                f"What was set on the Trainer refers to its {self._refused[key]}, and a new Trainer has another one.",
                f"Refer to the Trainer instead, and take its {self._refused[key]} where it is used.",
            )
        if isinstance(value, type):
            raise InvalidRequest(
                f"{value.__qualname__}, an object of which was set on the Trainer, reads the Trainer from a global.",
                "Give the Trainer to the object instead, or put this into a subclass of the Trainer.",
            )
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            made: Any = types.MethodType(self._copied(value.__func__), self._copied(value.__self__))
        elif isinstance(value, functools.partial):
            keywords = {name: self._copied(part) for name, part in value.keywords.items()}
            made = functools.partial(self._copied(value.func), *map(self._copied, value.args), **keywords)
        elif type(value) in (tuple, set, frozenset):
            made = type(value)(map(self._copied, value))
        else:
            made = self._object(value)
        self._copies[key] = made
        return made

    def _object(self, value: Any) -> Any:
        self._copied(type(value))  # raises
        made = self._copies[id(value)] = copy.copy(value)
        if isinstance(value, dict):
            made.update({name: self._copied(part) for name, part in value.items()})
        elif isinstance(value, (list, deque)):
            made.clear()
            made.extend(map(self._copied, value))
        vars_of = getattr(value, "__dict__", {})
        getattr(made, "__dict__", {}).update({name: self._copied(part) for name, part in vars_of.items()})
        return made

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """A function of the same code; variables that do not lead to the objects are the function's."""
        names = {name: part for name, part in globals_of(function).items() if id(part) in self._leading}
        if names and _names(function.__code__, "STORE_GLOBAL", "DELETE_GLOBAL"):
            raise InvalidRequest(
                f"{function.__qualname__}, which was set on the Trainer, assigns globals and reads the Trainer from one "
                f"({min(names)}).",
                "Put it into a subclass of the Trainer, and use `self`.",
            )
        scope = _Globals(function.__globals__) if names else function.__globals__
        before = function.__closure__ or ()
        cells = tuple(types.CellType() if id(content(cell)) in self._leading else cell for cell in before)
        made = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self._copies[id(function)] = made
        functools.update_wrapper(made, function, updated=())
        del vars(made)["__wrapped__"]
        made.__defaults__ = function.__defaults__ and tuple(map(self._copied, function.__defaults__))
        keywords = function.__kwdefaults__
        made.__kwdefaults__ = keywords and {name: self._copied(part) for name, part in keywords.items()}
        made.__dict__.update({name: self._copied(part) for name, part in function.__dict__.items()})
        scope.update({name: self._copied(part) for name, part in names.items()})
        for cell, old in zip(cells, before, strict=True):
            if cell is not old:
                cell.cell_contents = self._copied(old.cell_contents)
        return made


class _Globals(dict[str, Any]):
    """A function's globals, with other values of some; the rest is read when the function reads it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        super().__init__(__name__=scope.get("__name__"), __builtins__=scope.get("__builtins__", builtins))
        self._scope = scope

    def __missing__(self, name: str) -> Any:
        return self._scope[name]


# Objects that a value refers to -------------------------------------------------------------------------------------------


def inside(value: Any, classes: bool = True) -> list[Any]:
    """Objects that this value refers to; classes: the class of an object too, unless it is a library's."""
    if isinstance(value, types.FunctionType):
        cells, *_ = parts_of_call(value)
        return [*cells, *_defaults(value), *value.__dict__.values(), *globals_of(value).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, type):
        return [] if of_library(value.__module__) else [*filter(callable, map(function_of, vars(value).values()))]
    held: list[Any] = [*getattr(value, "__dict__", {}).values(), *([type(value)] if classes else [])]
    if isinstance(value, Mapping):
        return [*held, *value.values()]
    return [*held, *value] if isinstance(value, (list, tuple, set, frozenset, deque)) else held


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
    return {name: scope[name] for name in _names(function.__code__, "LOAD_GLOBAL", "LOAD_NAME") if name in scope}


def _names(code: types.CodeType, *operations: str) -> set[str]:
    """Names with which code, and the functions within it, perform these operations."""
    names = {str(item.argval) for item in dis.get_instructions(code) if item.opname in operations}
    return names.union(*(_names(part, *operations) for part in code.co_consts if isinstance(part, types.CodeType)))


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
