"""The site of the documentation: a folder for each version.

python docs/versions.py FOLDER: `dev` is this checkout, `0.1` the newest tag v0.1.*, each built by `make docs` of its own source.
An address without a version leads to the newest one. versions.json lists them. DOCS_URL is the address of the site.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVELOPMENT = "dev"
Make = Callable[[str | None, Path, dict[str, str]], None]
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>autotune</title><link rel="canonical" href="{to}">
<script>location.replace("{to}" + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={to}"></noscript></head>
<body><a href="{to}">This page in its newest version</a></body></html>
"""


def versions(tags: list[str]) -> dict[str, str]:
    """Name of a version -> its tag, the newest first; of versions that differ in their last number the last one."""
    numbers = [tuple(map(int, match.groups())) for tag in tags if (match := re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", tag))]
    newest = {f"{major}.{minor}": f"v{major}.{minor}.{patch}" for major, minor, patch in sorted(numbers)}
    return dict(reversed(newest.items()))


def make(tag: str | None, target: Path, variables: dict[str, str]) -> None:
    """Build the pages of a tag, or of this checkout, into a new folder."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source") if tag else ROOT
        if tag:
            subprocess.run(["git", "worktree", "add", "--detach", source, tag], cwd=ROOT, check=True)
        subprocess.run(["make", "docs"], cwd=source, env=os.environ | variables, check=True)
        pages = source / "docs" / "_build" / "html"
        shutil.copytree(pages, target, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)


def build(folder: Path, url: str, tags: dict[str, str], make: Make = make) -> None:
    """Write the site of these versions and of this checkout."""
    names = [*tags, DEVELOPMENT]
    for name in names:
        make(tags.get(name), folder / name, {"DOCS_URL": f"{url}{name}/", "DOCS_VERSIONS": " ".join(names)})
    for page in (folder / names[0]).rglob("*.html"):
        path = page.relative_to(folder / names[0])
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(REDIRECT.format(to=f"{url}{names[0]}/{path}"), encoding="utf-8")
    shutil.copy(folder / names[0] / "404.html", folder)  # its links are absolute: conf.py
    text = (folder / names[0] / "llms.txt").read_text(encoding="utf-8")
    (folder / "llms.txt").write_text(text.replace("](", f"]({url}{names[0]}/"), encoding="utf-8")
    listed = [{"version": name, "tag": tags.get(name), "url": f"{url}{name}/"} for name in names]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    listed = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    build(Path(sys.argv[1]), os.environ["DOCS_URL"], versions(listed))


if __name__ == "__main__":
    main()
