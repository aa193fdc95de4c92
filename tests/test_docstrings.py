"""Docstrings of public names: what each is, what its fields are, and what it raises."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import autotune
from autotune.study.result import SearchResult
from tests.docs.pages import generator

PAGES = generator()
"""The module that writes the page of the API: it names the classes there."""
ERRORS = {error.__name__: error for error in PAGES.ERRORS}
PUBLIC = {name: getattr(autotune, name) for name in autotune.__all__}
CLASSES = {
    kind.__name__: kind
    for kind in (*filter(inspect.isclass, PUBLIC.values()), *PAGES.NOUNS, *PAGES.ERRORS, *PAGES.WARNINGS)
}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class itself defines for its users: name, and the function behind it."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif isinstance(member, cached_property):
            yield name, member.func
        elif isinstance(member, (classmethod, staticmethod)):
            yield name, member.__func__
        elif inspect.isfunction(member):
            yield name, member


MEMBERS = {f"{kind.__name__}.{name}": (kind, member) for kind in CLASSES.values() for name, member in members(kind)}
FUNCTIONS = {name: (None, function) for name, function in PUBLIC.items() if inspect.isfunction(function)} | MEMBERS
FIELDS = [
    (kind, field.name)
    for kind in CLASSES.values()
    if "__dataclass_fields__" in vars(kind)
    for field in dataclasses.fields(kind)
]


def doc(thing: Any) -> str:
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return " ".join(inspect.cleandoc(text or "").split())


def is_described(kind: type, name: str) -> bool:
    """Whether a class says what a field is: `name: ...` in its docstring, a comment beside the field, or a text below it."""
    names = r"(?:^|(?<=[.;] ))([\w*]+(?:, [\w*]+)*): "
    for base in filter(dataclasses.is_dataclass, kind.__mro__):
        listed = [field for fields in re.findall(names, doc(base)) for field in fields.split(", ")]
        commented = rf'^    {name}: [^\n]*(  #:? \S|\n    """)'
        if any(re.fullmatch(field.replace("*", r"\w+"), name) for field in listed):
            return True
        if re.search(commented, inspect.getsource(base), re.MULTILINE):
            return True
    return False


def test_public_names_and_members_have_a_docstring() -> None:
    texts = {name: doc(thing) for name, thing in {**CLASSES, **PUBLIC}.items()}
    missing = [
        name for name, text in texts.items() if not text.endswith((".", ":", "`")) or text.startswith(f"{name}(")
    ]
    assert not missing + [name for name, (_, member) in MEMBERS.items() if len(doc(member).split()) < 3]


def test_every_field_is_described_in_its_class() -> None:
    assert not [f"{kind.__name__}.{name}" for kind, name in FIELDS if not is_described(kind, name)]


def test_errors_that_can_be_raised_are_named() -> None:
    unnamed = {
        name: {error for error in raised(kind, function) if not is_named(error, doc(function))}
        for name, (kind, function) in FUNCTIONS.items()
    }
    assert not {name: errors for name, errors in unnamed.items() if errors}


def is_named(error: str, text: str) -> bool:
    """Whether the text says that this is raised, or what it is a kind of."""
    text += "".join(f" {doc(PUBLIC[other])}" for other in re.findall(r"all that `(\w+)` raises", text))
    kinds = "|".join(kind.__name__ for kind in ERRORS[error].__mro__ if kind.__name__ in ERRORS)
    return bool(re.search(rf"[Rr]aises?\b.*\b({kinds})\b", text))


def raised(kind: type | None, function: Any) -> set[str]:
    """Our errors that a function raises itself, or that a function of ours which it calls says it raises."""
    errors: set[str] = set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tried = [part for node in ast.walk(tree) if isinstance(node, ast.Try) for part in node.body]
    caught = {id(inner) for part in tried for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            errors |= {getattr(node.exc.func, "id", "")} & ERRORS.keys()
        elif id(node) not in caught and (used := used_by(kind, function, node)) not in (None, function):
            errors |= {error for error in ERRORS if is_named(error, doc(used))}
    return errors


def used_by(kind: type | None, function: Any, node: ast.AST) -> Any:
    """What of ours a node calls by its name, or takes of `self`; else None."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
        and kind
    ):
        return {name: member for base in reversed(kind.__mro__) for name, member in members(base)}.get(node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        called = inspect.unwrap(function).__globals__.get(node.func.id)
        return called if inspect.isfunction(called) and called.__module__.startswith("autotune.") else None
    return None


def test_raised_errors_are_recognized() -> None:
    assert {"NothingFits", "InvalidRequest"} <= raised(SearchResult, SearchResult.speedup.fget)
    assert "InvalidRequest" in raised(None, autotune.search)
    assert not is_named("NothingFits", "It raises no NothingUnderstood.")
