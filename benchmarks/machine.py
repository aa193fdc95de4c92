"""What a benchmark's table says of the machine it came from; no host name."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path


def machine_line() -> str:
    """`AMD EPYC, 2 cores, Python 3.11.7, torch 2.13.0, transformers 5.23.0`."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "optuna")]
    cores = len(os.sched_getaffinity(0))
    return f"{cpu}, {cores} cores, Python {platform.python_version()}, {', '.join(versions)}"


def made_line() -> str:
    """`Made 2026-11-26 at revision 57d5a1b6.`: docs/figures.py compares that revision's code with the present one."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False)
    return f"Made {date.today()} at revision {done.stdout.strip() or 'unknown'}."


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def write_table(path: Path, title: str, lines: list[str]) -> None:
    """Print a Markdown table under its title, machine and revision, and keep it."""
    text = "\n".join([f"# {title}", "", f"Machine: {machine_line()}.", made_line(), "", *lines]) + "\n"
    print(text)
    path.write_text(text, encoding="utf-8")
