"""The script that runs the tests with other versions of the libraries names these as the project does."""

import re
import subprocess
import tomllib
from functools import cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.hurry import ROOT

SCRIPT = ROOT / "tests" / "gpu" / "software.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@cache
def words(variable: str) -> list[Requirement]:
    """What a variable of the script lists."""
    text = re.search(rf'^{variable}="(.*?)"$', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert text
    return [Requirement(word) for word in text[1].split()]


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(item.name) for item in requirements}


def test_it_is_a_script_that_shows_its_usage() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True, timeout=300)
    for arguments in ([], ["folder"], ["folder", "another"]):
        done = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 2
        assert "tests/gpu/software.sh FOLDER KIND" in done.stderr


def test_the_gpu_machine_has_all_that_the_project_needs_in_versions_that_it_admits() -> None:
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    assert names(needed) <= names(words("machine")) | names(words("wheels"))
    admitted = {canonicalize_name(item.name): item.specifier for item in needed}
    for item in words("machine"):
        for pin in item.specifier:
            assert pin.version in admitted.get(canonicalize_name(item.name), pin.version), item


def test_the_wheels_have_pinned_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert names(words("wheels")) <= pinned


def test_every_extra_that_the_tests_need_is_tried_at_its_lowest_versions() -> None:
    tried = {item.name for item in words("extras")}
    extras = {
        name: names([Requirement(text) for text in texts]) for name, texts in PROJECT["optional-dependencies"].items()
    }
    developers = extras["dev"] | extras["service"] | extras["postgres"]
    assert tried == {name for name, needed in extras.items() if needed <= developers} - {"dev", "docs"}


def test_the_interpreters_are_admitted() -> None:
    versions = re.findall(r"version=(3\.\d+)", SCRIPT.read_text(encoding="utf-8"))
    assert len(versions) == 3
    assert min(versions, key=lambda text: int(text[2:])) == PROJECT["requires-python"].removeprefix(">=")
