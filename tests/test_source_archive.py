"""The source archive: whoever unpacks it has all that the tests and the documentation read."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def tracked() -> set[str]:
    try:
        told = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout")
    return {name for name in told.stdout.split("\0") if name}


def archived() -> set[str]:
    """Names of what hatchling would put in, as it reads pyproject.toml."""
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed (of the extra dev)")
    builder = sdist.SdistBuilder(str(ROOT))
    return {
        str(Path(recurse_included_file.relative_path)) for recurse_included_file in builder.recurse_included_files()
    }


def test_every_file_of_the_checkout_is_in_it() -> None:
    assert tracked() - archived() <= {".gitignore", "pyproject.toml"}, "these two hatchling adds itself"


def test_the_wheel_holds_every_file_of_the_package() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed (of the extra dev)")
    files = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {name for name in tracked() if name.startswith("autotune/")} <= files
