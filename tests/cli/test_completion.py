"""The tab key: what a shell is offered, by really asking it, and that nothing heavy is loaded for that."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.makers import result
from tests.terminals import surroundings

HEAVY = ("torch", "transformers", "optuna", "pandas", "numpy", "matplotlib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two studies, one of them not in the usual place."""
    folder = tmp_path_factory.mktemp("completion")
    result().save(folder / "reports" / "first")
    result().save(folder / "elsewhere" / "second")
    return folder


def offered(folder: Path, *words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    asked = {"_AUTOTUNE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["autotune", *words])}
    command = [sys.executable, "-m", "autotune"]
    variables = surroundings(**asked, COMP_CWORD=str(len(words)))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=variables)
    assert done.stderr == ""
    return list(filter(None, done.stdout.splitlines()))


CASES = {
    "commands": (["es"], ["estimate"]),
    "options": (["search", "gpt2-mini", "--sam"], ["--sampler"]),
    "built-in models": (["search", "bert-m"], ["bert-mini"]),
    "built-in models of an estimate": (["estimate", "bert-l"], ["bert-large"]),
    "models of a guide": (["guide", "bert-l"], ["bert-large"]),
    "spaces": (["search", "bert-mini", "--space", "qu"], ["quick"]),
    "samplers": (["search", "bert-mini", "--sampler", "br"], ["brute-force"]),
    "objectives": (["search", "bert-mini", "--objective", "mem"], ["memory"]),
    "tasks": (["search", "bert-mini", "--task", "masked"], ["masked-lm"]),
    "devices": (["doctor", "--device", "c"], ["cpu", "cuda"]),
    "cards": (["estimate", "bert-mini", "--gpu", "V100"], ["V100-16GB", "V100-32GB"]),
    "studies to report": (["report", "f"], ["first"]),
    "studies to verify": (["verify", "fi"], ["first"]),
    "studies to explain": (["explain", ""], ["first"]),
    "studies elsewhere": (["report", "--output-dir", "elsewhere", ""], ["second"]),
    "studies where there are none": (["report", "--output-dir", "nowhere", ""], []),
}


@pytest.mark.parametrize("what", CASES)
def test_bash_is_offered(what: str, folder: Path) -> None:
    words, expected = CASES[what]
    assert offered(folder, *words) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same_with_what_it_is(shell: str, folder: Path) -> None:
    asked = {"_AUTOTUNE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "autotune search bert-mini --space qu"}
    variables = surroundings(**asked, _TYPER_COMPLETE_FISH_ACTION="get-args")
    command = [sys.executable, "-m", "autotune"]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=variables).stdout
    assert "quick" in told
    assert "default" not in told
    assert len(told.split()) > 2  # the space's own description beside its name


def test_completion_loads_nothing_heavy(folder: Path) -> None:
    program = """
import contextlib, json, sys
from autotune.__main__ import main
sys.argv = ["autotune"]
with contextlib.suppress(SystemExit):
    main()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    for words in ("search bert-mini --space ", "search ", "report ", "estimate x --gpu "):
        asked = {"_AUTOTUNE_COMPLETE": "complete_bash", "COMP_WORDS": f"autotune {words}"}
        variables = surroundings(**asked, COMP_CWORD=str(1 + len(words.split())))
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=variables)
        *words_offered, loaded = done.stdout.splitlines()
        assert words_offered
        assert not set(json.loads(loaded)) & set(HEAVY)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_can_be_shown_and_installed(shell: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # Typer looks which shell it is started from, unless it is told not to: then it takes the shell's name.
    variables = surroundings(HOME=str(home), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    for option in ("--show-completion", "--install-completion"):
        command = [sys.executable, "-m", "autotune", option, shell]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=variables)
        assert f"_AUTOTUNE_COMPLETE=complete_{shell}" in done.stdout or option == "--install-completion"
    installed = [path.read_text() for path in home.rglob("*") if path.is_file()]
    assert any(f"_AUTOTUNE_COMPLETE=complete_{shell}" in text for text in installed)


def test_a_real_bash_completes_at_the_tab_key(folder: Path, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "autotune"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m autotune "$@"\n')
    command.chmod(0o755)
    shown = [sys.executable, "-m", "autotune", "--show-completion", "bash"]
    variables = surroundings(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    script = subprocess.run(shown, capture_output=True, text=True, check=True, env=variables).stdout
    program = f"""
PATH={bin_folder}:$PATH
{script}
COMP_WORDS=(autotune search bert-mini --sampler br); COMP_CWORD=4
_autotune_completion autotune br --sampler
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([bash, "-c", program], cwd=folder, capture_output=True, text=True, env=surroundings())
    assert done.stdout.strip() == "brute-force", done.stderr
