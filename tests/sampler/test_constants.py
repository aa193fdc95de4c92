"""Tests of the sources of constants: each number that decides something names its evidence."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for name in ("judge", "sampler") for path in (ROOT / "autotune" / name).glob("*.py"))
SOURCE = re.compile(r"Evidence:\s|\bGuess\b|Technical[.:]")


def numbers(text: str) -> Iterator[tuple[str, str]]:
    """(name, docstring or nothing) of each upper-case name of a module that is assigned numbers."""
    body = ast.parse(text).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is None or not any(name.isupper() for name in names) or not is_number(value):
            continue
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        yield " ".join(names), str(following.value.value) if is_text else ""


def is_number(value: ast.expr) -> bool:
    in_functions = {id(part) for each in ast.walk(value) if isinstance(each, ast.Lambda) for part in ast.walk(each)}
    numbers = (part for part in ast.walk(value) if isinstance(part, ast.Constant) and type(part.value) in (int, float))
    return any(id(number) not in in_functions for number in numbers)


EVERY = {
    f"{path.parent.name}/{path.name}: {name}": text for path in MODULES for name, text in numbers(path.read_text())
}


@pytest.mark.parametrize("name", EVERY)
def test_a_number_names_its_evidence_or_says_that_it_is_a_guess(name: str) -> None:
    assert SOURCE.search(EVERY[name]), f'{name}: end its docstring with its evidence, "Guess." or "Technical: …"'


def test_evidence_that_is_named_exists() -> None:
    log = (ROOT / "reports" / "LOG.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ") for line in log.splitlines() if line.startswith("#")}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        missing = [
            file for file in re.findall(r"(?:reports|benchmarks)/\w+\.(?:md|py)", text) if not (ROOT / file).is_file()
        ]
        parts = re.findall(r"LOG\.md,\s+\"([^\"]+)\"", text)
        missing += [part for part in parts if " ".join(part.split()) not in headings]
        assert not missing, path


def test_numbers_without_a_docstring_are_found() -> None:
    text = (
        'ONE = 1\nTWO: int = 2\n"""Guess."""\nTEXTS = (ONE, "3")\nBOTH, EACH = 0.1, (2, 3)\nCALLS = {"a": lambda: 5}\n'
    )
    assert [*numbers(text)] == [("ONE", ""), ("TWO", "Guess."), ("BOTH EACH", "")]
