"""Figures of the packages that autotune needs: the tables of dependencies.md, and a software bill of materials (SBOM).

    python docs/dependencies.py measure FOLDER       a new environment in FOLDER, measured: writes dependencies.md
    python docs/dependencies.py sbom FILE            CycloneDX, of the packages that are installed here
    python docs/dependencies.py requirements         the same packages as NAME==VERSION

`measure` installs torch, then the wheel in dist/ (`make dist`), then one extra after the other, each with constraints.txt.
Needs an idle machine, and the package index or pip's cache.
"""

import json
import re
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
FOR_DEVELOPERS = {"dev", "docs", "benchmarks"}
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in FOR_DEVELOPERS]
MEASURED = ["service", "oidc", "postgres", "peft", "torchao", "tensorboard", "wandb", "mlflow"]
"""Extras whose packages constraints.txt has."""

COMPARED = {"matplotlib": "for comparison: with matplotlib, which autotune does not need"}
IMPORTS = 3
"""Imports of a package, of which the fastest counts."""


# What is needed ---------------------------------------------------------------------------------------------------


def needed(extras: Iterable[str] = ()) -> dict[str, list[str]]:
    """Canonical name -> those that it needs itself, of every package that is needed and installed here; sorted."""
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    found: dict[str, list[str]] = {}
    todo = [(Requirement(text), "") for text in texts]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            further = [Requirement(text) for text in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue
        news = [(item, each) for each in ("", *requirement.extras) for item in further]
        own = [item.name for item, each in news if not item.marker or item.marker.evaluate({"extra": each})]
        before = found.get(name)
        found[name] = sorted({*(before or ()), *map(canonicalize_name, own)})
        if found[name] != before:
            todo += news
    return {name: [other for other in found[name] if other in found] for name in sorted(found)}


def licence(name: str) -> str:
    """The licence that a package's metadata state, else the page; empty if neither does."""
    facts = metadata.metadata(name)
    if expression := facts.get("License-Expression"):
        return expression
    classifiers = [
        line.split(" :: ")[-1] for line in facts.get_all("Classifier") or () if line.startswith("License ::")
    ]
    stated = (facts.get("License") or "").strip().partition("\n")[0]
    row = re.search(rf"^\| `{name}` \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    return " and ".join(classifiers) or stated or (row[0].split(" | ")[-3] if row else "")


def maintainer(name: str) -> str:
    """The owner of a package's repository on GitHub, else its author."""
    facts = metadata.metadata(name)
    urls = [line.partition(", ")[2] for line in facts.get_all("Project-URL") or ()] + [facts.get("Home-page") or ""]
    owners = re.findall(r"github\.com/(?!sponsors/)([\w-]+)/", " ".join(f"{url}/" for url in urls))
    return owners[0] if owners else (facts.get("Author") or facts.get("Author-email") or "").partition("<")[0].strip()


# SBOM -------------------------------------------------------------------------------------------------------------


def sbom() -> dict[str, Any]:
    """A CycloneDX document, without a time or a random number: the same packages give the same file."""
    packages = needed(EXTRAS)
    own = f"pkg:pypi/{PROJECT['name']}"
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": PROJECT["name"],
                "licenses": [{"license": {"id": PROJECT["license"]}}],
                "purl": own,
            }
        },
        "components": [_component(name) for name in packages],
        "dependencies": [
            {"ref": own, "dependsOn": sorted(_purl(name) for name in direct & packages.keys())},
            *({"ref": _purl(name), "dependsOn": [_purl(item) for item in items]} for name, items in packages.items()),
        ],
    }


def _component(name: str) -> dict[str, Any]:
    stated = licence(name)
    expression = metadata.metadata(name).get("License-Expression")
    licences = [{"expression": stated}] if expression else [{"license": {"name": stated}}] if stated else []
    purl = _purl(name)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": metadata.version(name),
        "licenses": licences,
        "purl": purl,
        "supplier": {"name": maintainer(name)},
    }


def _purl(name: str) -> str:
    return f"pkg:pypi/{name}@{quote(metadata.version(name), safe='')}"


# Measuring --------------------------------------------------------------------------------------------------------


def size_mb(name: str) -> float:
    """MB (10^6 bytes) of a package's own files, compiled ones too."""
    paths = (Path(str(file.locate())) for file in metadata.files(name) or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def import_s(name: str) -> float | None:
    """Seconds that a new Python takes longer if it imports a package; None if it cannot be imported."""
    modules = [
        module for module, owners in metadata.packages_distributions().items() if name in map(canonicalize_name, owners)
    ]
    alike = [module for module in modules if canonicalize_name(module) == name]
    module = next(iter([*alike, *(each for each in modules if not each.startswith("_"))]), None)
    if module is None:
        return None
    try:
        return max(
            0.0, min(_started(f"import {module}") for _ in range(IMPORTS)) - min(_started("") for _ in range(IMPORTS))
        )
    except subprocess.CalledProcessError:
        return None


def _started(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, timeout=300)
    return time.perf_counter() - begun


def facts() -> dict[str, dict[str, Any]]:
    """Package -> maintainer, MB and seconds of importing, of the direct ones and those of extras that are installed here."""
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra])]
    names = {canonicalize_name(Requirement(text).name) for text in texts} & needed(EXTRAS).keys()
    return {
        name: {"maintainer": maintainer(name), "mb": size_mb(name), "import_s": import_s(name)}
        for name in sorted(names)
    }


def measure(folder: Path) -> None:
    """Install step by step in a new environment, measure there, and write the page."""
    venv.create(folder, with_pip=True)
    python, wheel = folder / "bin" / "python", next((ROOT / "dist").glob("*.whl"))
    steps = [
        ("torch", "`torch`, its CPU build", "torch"),
        ("wheel", "autotune, with the rest of what it needs", str(wheel)),
    ]
    steps += [(extra, f"the extra `{extra}`", f"{PROJECT['name']}[{extra}] @ {wheel.as_uri()}") for extra in MEASURED]
    steps += [(name, text, name) for name, text in COMPARED.items()]
    rows, before = [], _installed(python)
    for _, text, requirement in steps:
        begun = time.perf_counter()
        command = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), requirement]
        subprocess.run(command, check=True, cwd=folder)
        seconds, now = time.perf_counter() - begun, _installed(python)
        rows.append((text, f"{now[0] - before[0]}", f"{now[1] - before[1]:,.0f}", f"{seconds:.0f}"))
        before = now
    told = subprocess.run([str(python), __file__, "facts"], check=True, capture_output=True, text=True)
    text = _with_facts(PAGE.read_text(encoding="utf-8"), json.loads(told.stdout))
    PAGE.write_text(_with_steps(text, rows), encoding="utf-8")


def _installed(python: Path) -> tuple[int, float]:
    """(packages, MB of the disk) of an environment."""
    listed = subprocess.run([str(python), "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    used = subprocess.run(["du", "-sB1", str(site)], check=True, capture_output=True, text=True)
    return len(json.loads(listed.stdout)), int(used.stdout.split()[0]) / 1e6


def _with_facts(text: str, known: dict[str, dict[str, Any]]) -> str:
    """The page with these figures in the rows of its packages: their last columns are maintainer, licence, MB, seconds."""

    def row(match: re.Match[str]) -> str:
        item = known.get(canonicalize_name(match[2]))
        if item is None:
            return match[0]
        cells = match[0].strip("| ").split(" | ")
        seconds = "-" if item["import_s"] is None else f"{item['import_s']:.1f}"
        mb = f"{item['mb']:,.0f}" if item["mb"] >= 1 else f"{item['mb']:.1f}"
        return f"| {' | '.join([*cells[:-4], item['maintainer'], cells[-3], mb, seconds])} |"

    return re.sub(r"^(\| `([\w-]+)` \| .*)$", row, text, flags=re.MULTILINE)


def _with_steps(text: str, rows: list[tuple[str, ...]]) -> str:
    """The page with these rows in its table of steps."""
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return re.sub(r"(?<=\| --- \| ---: \| ---: \| ---: \|\n)(?:\|.*\n)+", lambda _: lines, text, count=1)


def lines(words: list[str]) -> Iterator[str]:
    """Output of a subcommand."""
    match words:
        case ["measure", folder]:
            measure(Path(folder).absolute())
        case ["facts"]:
            yield json.dumps(facts())
        case ["sbom", file]:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(json.dumps(sbom(), indent=1) + "\n", encoding="utf-8")
        case ["requirements"]:
            # Without the name of a build, as in 2.13.0+cpu: no index has that version.
            yield from (f"{name}=={metadata.version(name).partition('+')[0]}" for name in needed(EXTRAS))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    for line in lines(sys.argv[1:]):
        print(line)
