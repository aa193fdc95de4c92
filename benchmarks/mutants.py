"""How many random small changes of the code the tests notice.

python benchmarks/mutants.py 60 --seed 1 --report reports/mutants.md: a minute each. Adds to --records, and shows all in it.
`note` of a survivor there: why it behaves the same. --again repeats survivors without a note.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from machine import write_table

ROOT = Path(__file__).parents[1]
PACKAGES = ("study", "sampler", "space", "memory", "core")
SWAPS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq)]
SWAPS += [(ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)]
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def visited(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without annotations, docstrings, texts, `__repr__` and imports for types."""
    parts = list(ast.iter_child_nodes(node))
    match node:
        case ast.FunctionDef("__repr__") | ast.JoinedStr() | ast.Expr(ast.Constant()):
            return
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.keyword("repr" | "compare" | "frozen" | "slots" | "strict"):
            return
        case ast.FunctionDef():
            parts = [*node.args.defaults, *node.args.kw_defaults, *node.body]
        case ast.ClassDef():
            parts = node.body
        case ast.AnnAssign():
            parts = [node.value]
    yield node
    for part in filter(None, parts):
        yield from visited(part)


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Parts of a node, each with what to put in its place."""
    match node:
        case ast.Compare(ops=[op, *_]) | ast.BoolOp(op=op) | ast.BinOp(op=op) if "folder" not in ast.unparse(node):
            for other in [pair[1 - pair.index(type(op))]() for pair in SWAPS if type(op) in pair]:
                operators = {"op": other, "ops": [other, *getattr(node, "ops", [])[1:]]}
                yield node, type(node)(**{name: operators.get(name, value) for name, value in ast.iter_fields(node)})
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield node, operand
        case ast.Constant(bool() | int() | float() as value):
            yield node, ast.Constant({bool: not value, int: value + 1, float: value * 2 or 1.0}[type(value)])
        case ast.Call(ast.Name(name) as function) if name in FUNCTIONS:
            yield function, ast.Name(FUNCTIONS[name])
        case ast.IfExp(test) | ast.If(test) | ast.While(test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test, *_]):
            yield test, ast.Constant(True)
        case ast.Return(value) if value and ast.unparse(value) != "None":
            yield value, ast.Constant(None)
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield node, ast.Pass()


def mutants_of(path: Path) -> Iterator[tuple[int, tuple[str, str, str, bytes]]]:
    """(number of the line, (path, text before, text after, the whole mutated file)) of each."""
    source = path.read_bytes()
    starts = [0, *(end.end() for end in re.finditer(b"\n", source))]
    for node in visited(ast.parse(source)):
        for part, other in changes(node):
            first, last = starts[part.lineno - 1], starts[part.end_lineno]
            begin, end = first + part.col_offset, starts[part.end_lineno - 1] + part.end_col_offset
            text = ast.unparse(other) if isinstance(other, ast.Constant | ast.Pass) else f"({ast.unparse(other)})"
            head, tail = source[:begin] + text.encode(), source[end:]
            texts = source[first:last], head[first:] + source[end:last]
            before, after = (" ".join(text.decode().split()) for text in texts)
            yield part.lineno, (str(path.relative_to(ROOT)), before, after, head + tail)


def tests_of(copy: Path, path: Path) -> list[str]:
    """Files of tests in the copy: of the module, then of its package, then those that import it or what it defines."""
    module, tests = ".".join(path.with_suffix("").parts), copy / "tests"
    names = [path.stem, *(node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name"))]
    imports = re.compile(rf"{module}\b|from {module.rpartition('.')[0]} import .*\b({'|'.join(names)})\b")
    importing = [test for test in sorted(tests.rglob("test_*.py")) if imports.search(test.read_text())]
    mirror = tests.joinpath(*path.parts[1:-1], f"test_{path.name}")
    ordered = dict.fromkeys([mirror, *sorted((tests / path.parts[1]).rglob("test_*.py")), *importing])
    return [str(test.relative_to(copy)) for test in ordered if test.exists() and "gpu" not in test.parts]


def outcome(copy: Path, path: str, code: bytes) -> dict[str, str]:
    """Outcome of the tests on the copy with this file, and the one that failed."""
    (copy / path).write_bytes(code)
    words = ["timeout", "-k", "5", "600", sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    words += ["-m", "not nightly and not slow", *tests_of(copy, Path(path))]
    variables = os.environ | {"PYTHONPATH": str(copy), "TMPDIR": str(copy.parent)}
    done = subprocess.run(words, cwd=copy, env=variables, capture_output=True, text=True)
    shutil.copy(ROOT / path, copy / path)
    if done.returncode in (4, 5):  # pytest's: nothing was run
        raise RuntimeError(done.stdout)
    kinds = {0: "survived", 124: "timed out", 137: "timed out"}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return {"outcome": kinds.get(done.returncode, "caught"), "test": " ".join(failed)}


def table(records: list[dict[str, str]]) -> list[str]:
    """Rows by package, then the survivors."""
    rows = ["| package | mutants | caught | timed out | survived | of them alike |", "|---|---|---|---|---|---|"]
    for package in (*PACKAGES, ""):
        of = [record for record in records if record["path"].split("/")[1].startswith(package)]
        counts = [sum(record["outcome"] == kind for record in of) for kind in ("caught", "timed out", "survived")]
        alike = sum("note" in record for record in of)
        rows.append(f"| {package or 'all'} | {len(of)} | {' | '.join(map(str, (*counts, alike)))} |")
    share = 1 - (counts[2] - alike) / max(1, len(records) - alike)
    rows += ["", f"Noticed, of those that do not behave alike: {share:.0%}. Survivors:"]
    for record in (record for record in records if record["outcome"] == "survived"):
        note = record.get("note", "")
        rows.append(f"\n`{record['path']}` {note}\n\n```diff\n- {record['before']}\n+ {record['after']}\n```")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--records", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    options.records.touch()
    lines = options.records.read_text().splitlines()
    records = {(record["path"], record["before"], record["after"]): record for record in map(json.loads, lines)}
    left = {key for key, record in records.items() if record["outcome"] == "survived" and "note" not in record}
    paths = sorted(path for name in PACKAGES for path in (ROOT / "autotune" / name).rglob("*.py"))
    every = sorted((path, line, mutant) for path in paths for line, mutant in mutants_of(path))
    by_line = [[mutant for *_, mutant in group] for _, group in itertools.groupby(every, lambda found: found[:2])]
    dice = random.Random(options.seed)
    chosen = [dice.choice(mutants) for mutants in dice.sample(by_line, options.count)]
    chosen = [mutant for mutant in chosen if mutant[:3] not in records]
    if options.again:
        chosen = [mutant for *_, mutant in every if mutant[:3] in left]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, options.records.open("a") as file:
        copy = Path(shutil.copytree(ROOT, f"{scratch}/copy", ignore=shutil.ignore_patterns(".*", "__pycache__")))
        for path, before, after, code in chosen:
            records[path, before, after] = {"path": path, "before": before, "after": after, **outcome(copy, path, code)}
            print(json.dumps(records[path, before, after]), file=file, flush=True)
    write_table(options.report, "Random changes that the tests notice", table([*records.values()]))


if __name__ == "__main__":
    main()
