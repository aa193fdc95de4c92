"""What a benchmark's table says of the machine it came from; no host name."""

import importlib.metadata
import os
import platform
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


def write_table(path: Path, title: str, lines: list[str]) -> None:
    """Print a Markdown table under its title and machine, and keep it."""
    text = "\n".join([f"# {title}", "", f"Machine: {machine_line()}.", "", *lines]) + "\n"
    print(text)
    path.write_text(text, encoding="utf-8")
