"""Files that a public repository has: workflows, forms, the citation, and pages that are outside of the documentation."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import autotune
from autotune.executors.local import LOCKS
from tests.docs.pages import docs_module
from tests.test_architecture import TREES, imported

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {
    str(path.relative_to(ROOT)): yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in GITHUB.glob("workflows/*.yml")
}


# Workflows ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", WORKFLOWS)
def test_a_workflow_reads_the_code_and_has_a_limit_and_more_is_granted_to_jobs_that_publish(path: str) -> None:
    assert WORKFLOWS[path]["permissions"] == {"contents": "read"}
    assert WORKFLOWS[path]["concurrency"]["group"]
    for job in WORKFLOWS[path]["jobs"].values():
        assert "timeout-minutes" in job or "uses" in job
        if "permissions" in job:
            assert "environment" in job
            assert not [step for step in job["steps"] if "checkout" in step.get("uses", "")]
        for step in job.get("steps", []):
            assert "actions/checkout" not in step.get("uses", "") or step["with"]["persist-credentials"] is False


def test_a_release_is_of_the_version_that_the_changelog_dates(tmp_path: Path) -> None:
    """The job's own script, in a folder with both files."""
    (step,) = [step for step in WORKFLOWS[".github/workflows/release.yml"]["jobs"]["version"]["steps"] if "run" in step]
    module, changelog = tmp_path / "autotune" / "core" / "version.py", tmp_path / "docs" / "changelog.md"
    for path in (module, changelog):
        path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "autotune" / "core" / "version.py", module)

    def releases(tag: str) -> bool:
        environment = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
        script = ["bash", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(script, cwd=tmp_path, env=environment, timeout=300, check=False).returncode == 0

    version = autotune.__version__
    changelog.write_text("# Changelog\n\n## Unreleased\n")
    assert not releases(f"v{version}")
    changelog.write_text(f"# Changelog\n\n## {version} - 2026-12-01\n")
    assert releases(f"v{version}")
    assert not releases(f"v{version}.1")


# Other files ----------------------------------------------------------------------------------------------------


def test_links_of_pages_outside_of_the_documentation_lead_somewhere() -> None:
    for name in ("SECURITY.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)\s#]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target
    for page in re.findall(r"\]\((\w+)\.html\)", (ROOT / "docs/llms.txt").read_text(encoding="utf-8")):
        assert (ROOT / "docs" / f"{page}.md").exists(), page


def test_the_page_of_dependencies_has_each_that_is_direct() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    always, extras = text.partition("## Extras")[::2]
    names = [Requirement(item).name for item in PROJECT["dependencies"]]
    assert re.findall(r"^\| `([\w.-]+)` \|", always, re.MULTILINE) == names
    needed = [
        (Requirement(item).name, extra)
        for extra, items in PROJECT["optional-dependencies"].items()
        for item in items
        if extra not in ("dev", "docs", "benchmarks")
    ]
    assert sorted(re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|", extras, re.MULTILINE)) == sorted(needed)


# Dependencies ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dependencies() -> ModuleType:
    return docs_module("dependencies")


def test_every_library_that_a_module_imports_is_required(dependencies: ModuleType) -> None:
    """At once, and of the modules of an extra by some extra; what a function imports is not seen."""
    owners = packages_distributions()
    always, with_extras = dependencies.needed().keys(), dependencies.needed(dependencies.EXTRAS).keys()
    missing = set()
    for module, tree in TREES.items():
        libraries = {name.partition(".")[0] for name in imported(tree, at_import=True)} - sys.stdlib_module_names
        for library in libraries - {"autotune", "sitecustomize"}:
            required = with_extras if module.startswith("autotune.service.") else always
            if not {canonicalize_name(owner) for owner in owners.get(library, ())} & required:
                missing.add((module, library))
    assert not missing


def test_the_bill_of_materials_has_every_installed_package_with_its_licence(dependencies: ModuleType) -> None:
    bill = dependencies.sbom()
    components = {component["bom-ref"]: component for component in bill["components"]}
    assert {"torch", "transformers", "optuna", "fastapi", "safetensors"} <= {
        component["name"] for component in components.values()
    }
    assert [component["name"] for component in components.values() if not component["licenses"]] == []
    own = bill["metadata"]["component"]["bom-ref"]
    graph = {item["ref"]: item["dependsOn"] for item in bill["dependencies"]}
    assert graph.keys() == {own, *components}
    assert {ref for refs in graph.values() for ref in refs} <= components.keys()
    direct = {canonicalize_name(Requirement(item).name) for item in PROJECT["dependencies"]}
    assert {components[ref]["name"] for ref in graph[own]} == direct
    assert dependencies.sbom() == bill


def test_no_package_has_a_licence_that_asks_more_than_the_page_says(dependencies: ModuleType) -> None:
    """Strong copyleft would bind whoever passes autotune on with its libraries."""
    strict = {
        name: stated
        for name in dependencies.needed(dependencies.EXTRAS)
        if re.search(r"\b(?:A?GPL|SSPL|BUSL)\b", stated := dependencies.licence(name)) and "LGPL" not in stated
    }
    assert not strict


# Linters of others ----------------------------------------------------------------------------------------------


def test_a_service_sees_the_locks_of_gpus_that_other_users_of_the_machine_hold() -> None:
    """In a /tmp of its own it would measure on a card beside their searches."""
    text = (ROOT / "docs" / "service" / "autotune.service").read_text(encoding="utf-8")
    unit = dict(line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#"))
    assert unit.get("PrivateTmp", "no") == "no"
    assert unit["ProtectSystem"] == "strict"
    assert unit["ReadWritePaths"] == str(LOCKS)
