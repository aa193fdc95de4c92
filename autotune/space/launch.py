"""Launch: the command line that starts a training as it was measured, with its variables and as many processes."""

import shlex
from collections.abc import Mapping, Sequence

SCRIPT = "your_script.py"


def launch_line(processes: int, variables: Mapping[str, str], script: str = SCRIPT) -> str:
    """Command line with Python itself, or torchrun if the training has several ranks."""
    starter = f"torchrun --nproc-per-node {processes}" if processes > 1 else "python"
    return f"{_set_first(variables)}{starter} {script}"


def accelerate_line(processes: int, variables: Mapping[str, str], script: str = SCRIPT) -> str:
    """Command line with `accelerate launch`; empty if one process is started.

    On a CPU too: `--multi_gpu` is its word for several processes on one machine, and the arguments' `use_cpu` keeps them
    there. Its `--cpu` starts a single one that waits for the others without success (accelerate 1.15).
    """
    if processes == 1:
        return ""
    return f"{_set_first(variables)}accelerate launch --multi_gpu --num_processes {processes} {script}"


def on_ranks(words: Sequence[str], processes: int) -> list[str]:
    """A command of Python on n ranks: the launcher's module comes after the interpreter's own options, as `-u`."""
    place = 1
    while words[place : place + 1] and words[place].startswith("-") and words[place] not in ("-m", "-c"):
        place += 2 if words[place] in ("-W", "-X") else 1  # these two take the next word
    return [*words[:place], "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *words[place:]]


def _set_first(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
