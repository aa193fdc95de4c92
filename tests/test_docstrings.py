"""Every public name says what it is, in which unit its numbers are, and what it raises."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

import autotune
from autotune.study.result import SearchResult
from tests.docs.pages import generator

MADE = generator()
"""What makes the API's page: it says which classes stand there."""
ERRORS = {one.__name__: one for one in MADE.ERRORS}
PUBLIC = {name: getattr(autotune, name) for name in autotune.__all__}
CLASSES = {
    one.__name__: one
    for one in (
        *(thing for thing in PUBLIC.values() if inspect.isclass(thing)),
        *MADE.NOUNS,
        *MADE.ERRORS,
        *MADE.WARNINGS,
    )
}
UNITS = {
    r"per_second(_low|_high)?$": r"/ second",
    r"_s$|_seconds$|^seconds": r"second",
    r"_bytes$": r"bytes",
    r"_share$": r"share",
    r"^joules": r"energy",
}
"""Ends of names of numbers -> the words that say their unit."""


def members(of: type) -> Iterator[tuple[str, Any]]:
    """What a class itself defines for its users: name, and the function behind it."""
    for name, member in vars(of).items():
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


MEMBERS = {f"{of.__name__}.{name}": (of, member) for of in CLASSES.values() for name, member in members(of)}
FUNCTIONS = {name: (None, thing) for name, thing in PUBLIC.items() if inspect.isfunction(thing)} | MEMBERS
FIELDS = [
    (of, field.name)
    for of in CLASSES.values()
    if "__dataclass_fields__" in vars(of)
    for field in dataclasses.fields(of)
]


def said(thing: Any) -> str:
    return " ".join(
        inspect.cleandoc(vars(thing).get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or "").split()
    )


def of_field(of: type, name: str) -> str:
    """What a class says of a field: its `#:` comment, or the words after its name and a colon in the class's docstring."""
    for one in (one for one in of.__mro__ if dataclasses.is_dataclass(one)):
        if comment := re.search(rf"^    {name}: .*?#: (.+)$", inspect.getsource(one), re.MULTILINE):
            return comment[1]
        words = r"[\w*]+(?:, [\w*]+)*"
        clauses = re.findall(rf"(?:^|(?<=[.;] ))({words}): (.*?)(?=(?:[.;] {words}: )|$)", said(one))
        for names, text in clauses:
            if any(re.fullmatch(known.replace("*", r"\w+"), name) for known in names.split(", ")):
                return str(text)
    return ""


@pytest.mark.parametrize("name", [*PUBLIC, *CLASSES])
def test_every_public_name_says_what_it_is(name: str) -> None:
    text = said(PUBLIC.get(name) or CLASSES[name])
    assert text.endswith((".", ":", "`"))
    assert not text.startswith(f"{name}(")  # what dataclasses write by themselves


@pytest.mark.parametrize("name", MEMBERS)
def test_every_method_and_property_says_what_it_is(name: str) -> None:
    assert len(said(MEMBERS[name][1]).split()) >= 3


@pytest.mark.parametrize(("of", "name"), FIELDS)
def test_every_field_is_spoken_of_in_its_class(of: type, name: str) -> None:
    assert of_field(of, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_a_number_says_its_unit(name: str) -> None:
    last = name.rpartition(".")[2]
    for ending, unit in UNITS.items():
        assert not re.search(ending, last) or re.search(unit, said(FUNCTIONS[name][1]))


@pytest.mark.parametrize(("of", "name"), FIELDS)
def test_a_field_that_is_a_number_says_its_unit(of: type, name: str) -> None:
    for ending, unit in UNITS.items():
        assert not re.search(ending, name) or re.search(unit, of_field(of, name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_can_raise_says_what(name: str) -> None:
    of, function = FUNCTIONS[name]
    missing = {error for error in raised(of, function) if not named(error, said(function))}
    assert not missing


def named(error: str, text: str) -> bool:
    """Whether the text says that this is raised, or what it is a kind of."""
    text += "".join(f" {said(PUBLIC[other])}" for other in re.findall(r"all that `(\w+)` raises", text))
    kinds = "|".join(one.__name__ for one in ERRORS[error].__mro__ if one.__name__ in ERRORS)
    return bool(re.search(rf"[Rr]aises?\b.*\b({kinds})\b", text))


def raised(of: type | None, function: Any) -> set[str]:
    """Our errors that a function raises itself, or that something of ours which it calls says it raises."""
    found: set[str] = set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    caught = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found |= {getattr(node.exc.func, "id", "")} & ERRORS.keys()
        elif id(node) not in caught and (used := used_here(of, function, node)) is not None and used is not function:
            found |= {error for error in ERRORS if named(error, said(used))}
    return found


def used_here(of: type | None, function: Any, node: ast.AST) -> Any:
    """What of ours a node calls by its name, or takes of `self`; else None."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and of:
        every = dict(pair for one in reversed(of.__mro__) for pair in members(one))
        return every.get(node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        called = inspect.unwrap(function).__globals__.get(node.func.id)
        return called if inspect.isfunction(called) and called.__module__.startswith("autotune.") else None
    return None


def test_the_search_for_what_is_raised_finds_it() -> None:
    assert "NothingFits" in raised(SearchResult, SearchResult.speedup.fget)
    assert {"NothingFits", "InvalidRequest"} <= raised(SearchResult, SearchResult.speedup.fget)
    assert "InvalidRequest" in raised(None, autotune.search)
    assert not named("NothingFits", "It raises no NothingUnderstood.")
