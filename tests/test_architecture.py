"""The architecture: imports point down, what is imported early is light, and each module says what it is."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

PACKAGES = (
    "core",
    "space",
    "workload",
    "memory",
    "judge",
    "sampler",
    "probe",
    "executors",
    "study",
    "report",
    "commands",
    "service",
    "cli",
)
"""From the lowest: a package imports packages before it, and itself."""

HEAVY = ("torch", "transformers", "datasets", "bitsandbytes")
"""What wakes devices or takes seconds to import: the parent never loads it by itself."""


IN_PROGRAMS = tuple(f"autotune.commands.run.{name}" for name in ("program", "trial", "startup.sitecustomize"))
"""Modules that run in the user's programs."""


def name_of(path: Path) -> str:
    parts = ["autotune", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


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
            names |= {name if name in MODULES else node.module for name in whole}
        elif at_import and (isinstance(node, (ast.FunctionDef, ast.Lambda)) or for_types(node)):
            continue
        else:
            names |= imported(node, at_import)
    return names


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] == "autotune"}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


# Imports --------------------------------------------------------------------------------------------------------


def test_the_package_root_holds_the_public_names_and_twelve_packages() -> None:
    entries = {path.name for path in PACKAGE.iterdir() if path.name not in ("__pycache__", "py.typed")}
    assert entries == {"__init__.py", "__main__.py", "errors.py", *PACKAGES}


def test_imports_point_down_the_lazy_ones_too() -> None:
    ranks = {name: number for number, name in enumerate([*PACKAGES, "errors", "", "__main__"])}
    upwards = [
        f"{module} -> {target}"
        for module, tree in TREES.items()
        for target in ours(imported(tree))
        if ranks[package_of(target)] > ranks[package_of(module)]
    ]
    assert not upwards


def test_the_package_root_imports_nothing_at_import_and_nothing_imports_it() -> None:
    assert not ours(imported(TREES["autotune"], at_import=True))
    assert not [module for module, tree in TREES.items() if "autotune" in imported(tree)]


def test_no_imports_go_round_in_a_circle() -> None:
    below = {name: ours(imported(tree)) & set(MODULES) for name, tree in TREES.items() if name != "autotune"}
    finished: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a circle: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name not in finished:
            for target in sorted(below.get(name, ())):
                walk(target, (*trail, name))
            finished.add(name)

    for name in MODULES:
        walk(name, ())


def test_core_knows_the_standard_library_and_platformdirs_only() -> None:
    outside = [
        f"{module} -> {target}"
        for module in MODULES
        if package_of(module) == "core"
        for target in imported(TREES[module])
        if target.partition(".")[0] not in {*sys.stdlib_module_names, "autotune", "platformdirs"}
    ]
    assert not outside


def test_ray_is_imported_in_one_place_and_only_when_it_is_used() -> None:
    users = {name for name, tree in TREES.items() if "ray" in imported(tree)}
    assert users == {"autotune.executors.ray"}
    assert "ray" not in imported(TREES["autotune.executors.ray"], at_import=True)


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
    loaded = loaded_by("import autotune; assert dir(autotune) == sorted([*autotune.__all__, '__version__'])")
    assert "autotune" in loaded
    assert not loaded & {*HEAVY, "optuna", "pandas", "numpy", "ruamel", "pydantic"}


SEARCH = "search gpt2-mini --global-batch-size 8 --device cpu"


@pytest.mark.parametrize("words", ["search --help", f"{SEARCH} --dataset none.txt", f"{SEARCH} --args none.json"])
def test_help_and_a_search_that_is_refused_load_nothing_heavy(words: str) -> None:
    program = f"""
import contextlib, sys
sys.argv = ["autotune", *{words.split()!r}]
from autotune.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
    assert not loaded_by(program) & {*HEAVY, "optuna", "pandas", "numpy", "scipy"}


def test_the_parent_loads_nothing_heavy_before_it_searches() -> None:
    parents = [name for name in MODULES if package_of(name) not in ("probe", "workload", "__main__")]
    parents = [name for name in parents if ".migrations." not in name]  # Alembic runs these, no program imports them
    parents = [name for name in parents if name not in IN_PROGRAMS]
    parents += ["autotune.probe.process.launcher", "autotune.probe.device.nvml"]
    loaded = loaded_by("import " + ", ".join(parents))
    assert "optuna" in loaded
    assert not loaded & set(HEAVY)


def test_the_supervisor_loads_nothing_that_takes_time() -> None:
    assert not loaded_by("import autotune.probe.process.supervisor") & {*HEAVY, "optuna", "pandas", "numpy"}


# What each file says --------------------------------------------------------------------------------------------
