"""The size of each package: a change that makes one larger or smaller shows it in tests/data/code_lines.json."""

import ast
import json
from collections import Counter
from pathlib import Path

from tests.test_architecture import MODULES, PACKAGE, TREES

CODE_LINES = Path(__file__).parent / "data" / "code_lines.json"
"""Package of autotune/ -> its code lines; "." is the root."""


def code_lines(text: str, tree: ast.AST) -> int:
    """Number of lines without blanks, comments, docstrings (those of values too) and imports."""
    others: set[int] = set()
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            others |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in others for number, line in lines)


def test_the_file_has_the_code_lines_of_each_package() -> None:
    counted: Counter[str] = Counter()
    for name, path in MODULES.items():
        parts = path.relative_to(PACKAGE).parts
        counted[parts[0] if len(parts) > 1 else "."] += code_lines(path.read_text(encoding="utf-8"), TREES[name])
    written = json.loads(CODE_LINES.read_text(encoding="utf-8"))
    wrong = [
        f'"{package}": {counted[package]} instead of {written.get(package, 0)}'
        for package in sorted({*counted, *written})
        if counted[package] != written.get(package, 0)
    ]
    assert not wrong, f"edit {CODE_LINES.relative_to(PACKAGE.parent)}: {', '.join(wrong)}"
