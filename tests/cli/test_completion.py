"""Shell completion: what is offered, in a real bash too, and that nothing heavy is loaded for it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from tests.makers import result
from tests.terminals import surroundings

HEAVY = ("torch", "transformers", "optuna", "pandas", "numpy")

CASES = [
    (["es"], ["estimate"]),
    (["search", "gpt2-mini", "--sam"], ["--sampler"]),
    (["search", "bert-m"], ["bert-mini"]),
    (["estimate", "bert-l"], ["bert-large"]),
    (["guide", "bert-l"], ["bert-large"]),
    (["search", "bert-mini", "--search-space", "qu"], ["quick"]),
    (["search", "bert-mini", "--sampler", "br"], ["brute-force"]),
    (["search", "bert-mini", "--objective", "tok"], ["tokens_per_second"]),
    (["search", "bert-mini", "--task", "masked"], ["masked-lm"]),
    (["doctor", "--device", "c"], ["cpu", "cuda"]),
    (["estimate", "bert-mini", "--gpu", "V100"], ["V100-16GB", "V100-32GB"]),
    (["estimate", "bert-mini", "--gpu", "RTX-40"], ["RTX-4090"]),
    (["search", "bert-mini", "--fix", "check"], ["checkpointing="]),
    (["search", "bert-mini", "--fix", "precision=bf16_"], ["precision=bf16_weights", "precision=bf16_frozen"]),
    (["search", "bert-mini", "--only", "precision=fp32,t"], ["precision=fp32,tf32"]),
    (["search", "bert-mini", "--only", "nothing=x"], []),
    (["report", "f"], ["first"]),
    (["verify", "fi"], ["first"]),
    (["explain", ""], ["first"]),
    (["report", "--output-dir", "elsewhere", ""], ["second"]),
    (["report", "--output-dir", "nowhere", ""], []),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two studies, one of them not in the usual place."""
    result().save(tmp_path / "reports" / "first")
    result().save(tmp_path / "elsewhere" / "second")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bash_is_offered_the_words_of_commands_options_and_values(folder: Path) -> None:
    for words, expected in CASES:
        variables = {"COMP_WORDS": " ".join(["autotune", *words]), "COMP_CWORD": str(len(words))}
        variables["_AUTOTUNE_COMPLETE"] = "complete_bash"
        done = CliRunner().invoke(app, [], prog_name="autotune", env=variables)
        assert list(filter(None, done.stdout.splitlines())) == expected, words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same_with_its_description(shell: str, folder: Path) -> None:
    variables = {"_AUTOTUNE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    variables["_TYPER_COMPLETE_ARGS"] = "autotune search bert-mini --search-space qu"
    words = CliRunner().invoke(app, [], prog_name="autotune", env=variables).stdout
    assert "quick" in words
    assert "default" not in words
    assert len(words.split()) > 2


def test_completion_loads_nothing_heavy(folder: Path) -> None:
    program = """
import contextlib, json, sys
from autotune.__main__ import main
sys.argv = ["autotune"]
with contextlib.suppress(SystemExit):
    main()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    for words in ("search bert-mini --search-space ", "search bert-mini --fix ", "report "):
        variables = {"_AUTOTUNE_COMPLETE": "complete_bash", "COMP_WORDS": f"autotune {words}"}
        environment = surroundings(**variables, COMP_CWORD=str(1 + len(words.split())))
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, env=environment, timeout=300
        )
        *offered, loaded = done.stdout.splitlines()
        assert offered
        assert not set(json.loads(loaded)) & set(HEAVY)


def test_the_script_for_a_shell_can_be_installed(tmp_path: Path) -> None:
    # Typer looks which shell it is started from, unless it is told not to: then it takes the shell's name.
    variables = surroundings(HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    command = [sys.executable, "-m", "autotune", "--install-completion", "zsh"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=variables, timeout=300)
    installed = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_AUTOTUNE_COMPLETE=complete_zsh" in text for text in installed)


def test_a_real_bash_completes_at_the_tab_key(folder: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = folder / "bin" / "autotune"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m autotune "$@"\n')
    command.chmod(0o755)
    shown = [sys.executable, "-m", "autotune", "--show-completion", "bash"]
    variables = surroundings(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    script = subprocess.run(shown, capture_output=True, text=True, check=True, env=variables, timeout=300).stdout
    program = f"""
PATH="{command.parent}:$PATH"
{script}
COMP_WORDS=(autotune search bert-mini --sampler br); COMP_CWORD=4
_autotune_completion autotune br --sampler
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [bash, "-c", program], cwd=folder, capture_output=True, text=True, env=surroundings(), timeout=300
    )
    assert done.stdout.strip() == "brute-force", done.stderr
