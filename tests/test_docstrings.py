"""Docstrings of public names: what each is, and what its fields are."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import autotune
from tests.docs.pages import docs_module

PAGES = docs_module("generated")
"""The module that writes the page of the API: it names the classes there."""
PUBLIC = {name: getattr(autotune, name) for name in autotune.__all__}
CLASSES = {
    kind.__name__: kind
    for kind in (*filter(inspect.isclass, PUBLIC.values()), *PAGES.NOUNS, *PAGES.ERRORS, *PAGES.WARNINGS)
}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class itself defines for its users: name, and the function behind it."""
    for name, member in vars(kind).items():
        if name.startswith("_") or any(
            hasattr(base, name) for base in kind.__bases__ if base.__module__.startswith("transf")
        ):
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
