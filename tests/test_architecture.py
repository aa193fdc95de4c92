"""The house's plan, held: who stands on whom, what stays light, and that each file says what it is."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

FLOORS = (
    ("errors", "options", "units", "cache", "variables", "scrubbing", "random_state", "parsing", "time_limit"),
    (
        "cards",
        "request",
        "configuration",
        "environment",
        "interval",
        "step",
        "measurement",
        "memory_peak",
        "prospect",
        "numerics",
        "rehearsal",
        "trial",
        "verification",
        "observation",
        "workload",
    ),
    (
        "levers",
        "space_file",
        "search_space",
        "space_building",
        "training_arguments",
        "launch",
        "objective",
        "no_answer",
        "certainty",
        "dominance",
        "prior",
        "cost_model",
        "gaussian",
        "likeness",
        "choosing",
        "pool",
        "stages",
        "memory_estimate",
        "memory_lines",
        "memory_wanted",
        "memory_replay",
        "memory_tape",
        "allocator_model",
        "tiles",
        "utilization",
        "own_arguments",
        "identity",
        "sending",
        "rebuilding",
        "callbacks",
        "lifted",
        "off_device",
        "deepspeed_config",
        "collators",
        "ladder",
        "attribution",
        "reasons",
    ),
    ("sampler", "physics", "proposals", "calibration", "ending", "interruption", "probe", "plan"),
    (
        "study",
        "limits",
        "ask_and_tell",
        "study_folder",
        "rates",
        "history",
        "knowledge",
        "survey",
        "pacing",
        "confirmation",
        "measuring",
        "rehearsing",
        "tracing",
        "parity",
        "finishing",
        "retracing",
        "anatomy",
        "report",
        "live",
        "live_guide",
        "live_table",
        "live_notebook",
        "live_words",
        "loggers",
    ),
    (
        "workflow",
        "finished",
        "own_trainer",
        "applying",
        "result",
        "found",
        "saved",
        "telling",
        "verify",
        "forecast",
        "guide",
        "explain",
        "reckoning",
        "comparison",
    ),
    (
        "cli",
        "cli_common",
        "cli_compare",
        "cli_search",
        "cli_estimate",
        "cli_report",
        "cli_guide",
        "cli_explain",
        "cli_completion",
        "service",
        "__main__",
        "__init__",
    ),
)
HEAVY = ("torch", "transformers", "datasets", "bitsandbytes")
"""What wakes devices or takes seconds to import: the parent never loads it by itself."""

LONGER: dict[str, str] = {}
"""Files above 350 lines, and why."""


def name_of(path: Path) -> str:
    parts = ["autotune", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
EVERY = pytest.mark.parametrize("module", MODULES)


def imported(tree: ast.AST, at_import: bool = False) -> set[str]:
    """Modules that this tree imports; at_import: only those that run when it is imported itself."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            assert node.module is not None
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {one if one in MODULES else node.module for one in whole}
        elif at_import and (isinstance(node, (ast.FunctionDef, ast.Lambda)) or for_types(node)):
            continue
        else:
            names |= imported(node, at_import)
    return names


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] == "autotune"}


def floor_of(module: str) -> int:
    room = module.split(".")[1] if "." in module else "__init__"
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


# Who stands on whom ---------------------------------------------------------------------------------------------


@EVERY
def test_every_room_has_its_floor(module: str) -> None:
    assert any([*module.split("."), "__init__"][1] in rooms for rooms in FLOORS)


@EVERY
def test_imports_point_down_the_lazy_ones_too(module: str) -> None:
    for target in ours(imported(TREES[module])):
        assert floor_of(target) <= floor_of(module), f"{module} imports {target}, which stands above it"


def test_no_imports_go_round_in_a_circle() -> None:
    below = {name: ours(imported(tree)) & set(MODULES) for name, tree in TREES.items()}
    finished: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a circle: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name not in finished:
            for target in sorted(below[name]):
                walk(target, (*trail, name))
            finished.add(name)

    for name in MODULES:
        walk(name, ())


@pytest.mark.parametrize("module", [name for name in MODULES if name != "autotune" and floor_of(name) <= 1])
def test_nouns_know_the_standard_library_only(module: str) -> None:
    for target in imported(TREES[module]):
        assert target.partition(".")[0] in {*sys.stdlib_module_names, "autotune"}


def test_no_room_is_named_like_a_public_function() -> None:
    names = {part for module in MODULES for part in module.split(".")}
    assert not names & {"search", "tune", "estimate", "compare", "explanation"}


# What stays light -----------------------------------------------------------------------------------------------


def loaded_by(program: str) -> set[str]:
    """Top-level packages in memory after this program, run as from a fresh shell."""
    told = f"{program}\nimport sys\nprint('LOADED', *{{name.partition('.')[0] for name in sys.modules}})"
    made = subprocess.run(
        [sys.executable, "-c", told],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    return set(made.stdout.rpartition("LOADED")[2].split())


def test_importing_autotune_loads_nothing_heavy() -> None:
    loaded = loaded_by("import autotune; dir(autotune)")
    assert "autotune" in loaded
    assert not loaded & {*HEAVY, "optuna", "pandas", "numpy", "yaml", "pydantic"}


@pytest.mark.parametrize("words", [["--help"], ["search", "--help"], ["--no-such-option"]])
def test_the_command_s_help_loads_nothing_heavy(words: list[str]) -> None:
    program = f"""
import contextlib, sys
sys.argv = ["autotune", *{words!r}]
from autotune.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
    assert not loaded_by(program) & {*HEAVY, "optuna", "pandas", "numpy"}


@pytest.mark.parametrize("words", [["--n-trials", "0"], ["--dataset", "none.txt"], ["--args", "none.json"]])
def test_a_search_that_is_refused_loads_nothing_heavy(words: list[str]) -> None:
    program = f"""
import contextlib, sys
sys.argv = ["autotune", "search", "gpt2-mini", "--global-batch-size", "8", "--device", "cpu", *{words!r}]
from autotune.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
    assert not loaded_by(program) & {*HEAVY, "optuna", "pandas", "numpy", "scipy"}


def test_the_parent_loads_nothing_heavy_before_it_searches() -> None:
    rooms = [name for name in MODULES if not name.startswith("autotune.probe.") and name != "autotune.__main__"]
    parents = ["autotune.probe.launcher", "autotune.probe.replay", "autotune.probe.device"]
    loaded = loaded_by("import " + ", ".join([*rooms, *parents]))
    assert "optuna" in loaded
    assert not loaded & set(HEAVY)


def test_the_host_imports_nothing_heavy_before_it_is_told_to() -> None:
    assert not {name.partition(".")[0] for name in imported(TREES["autotune.probe.host"], at_import=True)} & set(HEAVY)


def test_the_supervisor_loads_nothing_that_takes_time() -> None:
    assert not loaded_by("import autotune.probe.supervisor") & {*HEAVY, "optuna", "pandas", "numpy"}


# What each file says --------------------------------------------------------------------------------------------


@EVERY
def test_every_module_says_in_one_sentence_what_it_is(module: str) -> None:
    said = " ".join((ast.get_docstring(TREES[module]) or "").partition("\n\n")[0].split())
    assert said.endswith((".", ":"))
    assert ". " not in said


def test_no_file_is_two_subjects() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in MODULES.values()}
    assert {name for name, length in lengths.items() if length > 350} <= set(LONGER)
