"""README's commands and Python from the wheel in dist/ (`make dist`), in new environments with other versions.

    python benchmarks/wheel.py FOLDER SET... [--pages PAGE...]

SET is PYTHON-VERSIONS, as 3.13-newest; VERSIONS are `lowest` (the least that pyproject.toml admits), `pinned` (constraints.txt)
or `newest`. Each environment is made by uv in a folder with a blank below FOLDER, and has the wheel and what it needs,
nothing else. UV_CONSTRAINT and UV_FIND_LINKS are uv's: for example a CPU build of torch. Probes are real, and nothing disturbed
is measured again. A block of `sh` takes more than this machine has, and is skipped. Prints rows for reports/versions.md.
"""

import argparse
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.test_documents import BLOCKS, ROOT, Block, folder_of

NAMED = ("torch", "transformers", "numpy", "pandas", "pydantic")


def uv(*words: str) -> str:
    return subprocess.run(["uv", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def install(folder: Path, name: str) -> str:
    """The wheel in a new environment; returns its versions."""
    python, versions = name.split("-")
    uv("venv", "--quiet", "--clear", "--python", python, str(folder))
    (wheel,) = (ROOT / "dist").glob("*.whl")
    into = ["--python", str(folder / "bin" / "python")]
    constraints = {"lowest": [folder / "lowest.txt"], "pinned": [ROOT / "constraints.txt"], "newest": []}[versions]
    if versions == "lowest":  # of what the wheel needs: given as the only requirement, it would itself be the lowest
        resolve = ["--quiet", "--no-header", "--resolution", "lowest-direct", "--python-version", python]
        uv("pip", "compile", *resolve, str(ROOT / "pyproject.toml"), "--output-file", str(constraints[0]))
    how = [word for path in constraints for word in ("--constraint", str(path))]
    uv("pip", "install", "--quiet", "--compile-bytecode", *into, str(wheel), *how)
    installed = dict(re.findall(r"^(.+)==(.+)$", uv("pip", "freeze", *into), re.MULTILINE))
    return ", ".join(f"{package} {installed[package]}" for package in NAMED)


def passes(words: list[str], folder: Path, environment: Path, text: str = "") -> bool:
    """The exit code is 0 and something is printed; prints what else there was, and warnings."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"PATH": f"{environment / 'bin'}:{variables['PATH']}", "XDG_CACHE_HOME": str(environment / "cache")}
    variables |= {"PYTHONPATH": str(ROOT / "tests" / "hurried"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        words, cwd=folder, env=variables, input=text, capture_output=True, text=True, timeout=1200, check=False
    )
    passed = done.returncode == 0 and bool(done.stdout.strip())
    if not passed or re.search(r"^Traceback|Warning:", done.stderr, re.MULTILINE):
        print(words, done.returncode, done.stdout[-2000:], done.stderr[-4000:], sep="\n")
    return passed


def outcomes(block: Block, folder: Path, environment: Path) -> Iterator[str]:
    """passed, failed or skipped of each command of a block, of which a Python block has none other than itself."""
    if block.language in ("bash", "console"):
        results = [passes(["sh", "-c", command], folder, environment) for command in block.commands]
    elif block.language == "python" and not block.caption:
        results = [passes([str(environment / "bin" / "python"), "-"], folder, environment, block.text)]
    else:
        yield from ["skipped"] * len(block.commands)
        return
    yield from ("passed" if result else "failed" for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--pages", nargs="+", default=["README.md"])
    given = parser.parse_args()
    for name in given.sets:
        environment = given.folder.absolute() / f"the wheel {name}"
        begun, versions = time.monotonic(), install(environment, name)
        installed = time.monotonic()
        first = Block("", "bash", "", "autotune --version\nautotune --help")
        results = [*outcomes(first, environment, environment)]
        for page in given.pages:
            place = environment / f"a page {Path(page).stem}"
            place.mkdir()
            folder_of(page, place)
            results += [each for block in BLOCKS if block.page == page for each in outcomes(block, place, environment)]
        counts = " | ".join(str(results.count(each)) for each in ("passed", "failed", "skipped"))
        seconds = f"{installed - begun:.0f} | {time.monotonic() - installed:.0f}"
        print(f"| {name} | {versions} | {counts} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
