"""How many random small changes of the code the tests notice.

python -m pytest --cov=autotune --cov-context=test -m "not nightly" (pytest-cov) says which tests run a line: .coverage.
python benchmarks/mutants.py 60 --seed 1 --report reports/mutants.md: ten seconds each. Adds to --records, and shows all in it.
`note` of a survivor there: why it behaves the same. --again repeats survivors without a note.
"""

import argparse
import ast
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
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


def tests_of(data: coverage.CoverageData, path: Path, line: int) -> list[str]:
    """Tests that run this line, those of its module first, then those of its package.

    Without any, as on import, the files of tests of its package and those that import the module.
    """
    mirror, package = "/".join(("tests", *path.parts[1:-1], f"test_{path.name}")), f"tests/{path.parts[1]}/"
    contexts = data.contexts_by_lineno(str(ROOT / path)).get(line, [])
    tests = {context.partition("[")[0].partition("|")[0] for context in contexts} - {""}
    if not tests:
        module = ".".join(path.with_suffix("").parts)
        imports = re.compile(rf"{module}\b|from {module.rpartition('.')[0]} import .*\b{path.stem}\b")
        files = {str(test.relative_to(ROOT)): test for test in (ROOT / "tests").rglob("test_*.py")}
        tests = {name for name, test in files.items() if package in name or imports.search(test.read_text())}
    return sorted(tests, key=lambda test: (not test.startswith(mirror), not test.startswith(package), test))


def run_tests(copy: Path, tests: list[str], output: Path) -> None:
    """Run these in the copy, to the first that fails; end this process with pytest's code."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "TMPDIR": str(copy.parent)}
    sys.path[:0] = [str(copy)]
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    # The server of forks has imported plugins already, whose assertions pytest would rewrite.
    options = [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-p",
        "no:cacheprovider",
        "-m",
        "not nightly and not slow",
    ]
    os._exit(pytest.main(["-x", "-q", *options, *tests]))


def outcome(copy: Path, path: str, code: bytes, tests: list[str]) -> dict[str, str]:
    """Outcome of the tests on the copy with this file, and the one that failed."""
    (copy / path).write_bytes(code)
    output = copy.parent / "output"
    output.unlink(missing_ok=True)
    process = multiprocessing.Process(target=run_tests, args=(copy, tests, output))
    process.start()
    process.join(600)
    process.kill()
    process.join()
    shutil.copy(ROOT / path, copy / path)
    text = output.read_text()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if not failed and process.exitcode not in (0, -9):  # a test was not what failed
        raise RuntimeError(text)
    return {"outcome": {0: "survived", -9: "timed out"}.get(process.exitcode, "caught"), "test": " ".join(failed)}


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
    parser.add_argument("--coverage", default=".coverage")
    parser.add_argument("--most-tests", type=int, default=150, help="of a line: the nearest")
    parser.add_argument("--records", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    options.records.touch()
    lines = options.records.read_text().splitlines()
    records = {(record["path"], record["before"], record["after"]): record for record in map(json.loads, lines)}
    left = {key for key, record in records.items() if record["outcome"] == "survived" and "note" not in record}
    paths = sorted(path for name in PACKAGES for path in (ROOT / "autotune" / name).rglob("*.py"))
    every = sorted((path, line, mutant) for path in paths for line, mutant in mutants_of(path))
    by_line = [[*group] for _, group in itertools.groupby(every, lambda placed: placed[:2])]
    dice = random.Random(options.seed)
    chosen = [dice.choice(mutants) for mutants in dice.sample(by_line, options.count)]
    chosen = [placed for placed in chosen if placed[2][:3] not in records]
    if options.again:
        chosen = [placed for placed in every if placed[2][:3] in left]
    data = coverage.CoverageData(options.coverage)
    data.read()
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["pytest", "torch", "pandas", "optuna", "hypothesis"])
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, options.records.open("a") as file:
        copy = Path(shutil.copytree(ROOT, f"{scratch}/copy", ignore=shutil.ignore_patterns(".*", "__pycache__")))
        for module, line, (path, before, after, code) in chosen:
            tests = tests_of(data, module.relative_to(ROOT), line)[: options.most_tests]
            found = outcome(copy, path, code, tests)
            if (
                found["test"]
                and outcome(copy, path, module.read_bytes(), found["test"].split())["outcome"] != "survived"
            ):
                raise RuntimeError(f"{path}:{line}: {found['test']} fails without a change, too")
            record = {"path": path, "before": before, "after": after, **found}
            records[path, before, after] = record
            print(json.dumps(record), file=file, flush=True)
    write_table(options.report, "Random changes that the tests notice", table([*records.values()]))


if __name__ == "__main__":
    main()
