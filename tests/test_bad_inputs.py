"""Every row of the table of bad inputs: one clear line, the right exit code, and nothing written."""

import contextlib
import fcntl
import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands import search
from autotune.commands.estimate import run as forecast
from autotune.commands.guide import run as guide
from autotune.core import errors
from autotune.core.request import TuningRequest
from autotune.probe.order import Order
from autotune.workload.read import read_workload
from tests.bad_inputs import FINE, ROWS, BadInput, snapshot, write_files
from tests.conftest import RECORDED
from tests.hurry import hurried, hurry
from tests.recorded_host import RecordedHost

REFUSED = [row for row in ROWS if row.code != FINE]
TAKEN = [row for row in ROWS if row.code == FINE]
FOR_REAL = [row for row in ROWS if row.for_real]

OURS = {name for name, value in vars(errors).items() if isinstance(value, type)} | {"SpaceFile", "pydantic"}
"""Names that mean nothing to a user."""


class InThisProcess(RecordedHost):
    """A recorded host that reads model, data and arguments as a child would, without one."""

    def prepare(self, order: Order) -> dict[str, Any]:
        quiet = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
        with quiet[0], quiet[1], warnings.catch_warnings(action="ignore"):
            request = TuningRequest.from_dict(order.request["request"])
            return read_workload(request, Path(order.request["cache"])).to_dict()


class Accepted(Exception):
    """The input was read, and the search would begin."""


class UntilAccepted(InThisProcess):
    """A host that ends the search once model, data, arguments and search space were accepted."""

    def run(self, order: Order) -> dict[str, Any]:
        if order.kind not in ("capabilities", "prepare"):
            raise Accepted
        return super().run(order)


class NobodyAsked(RecordedHost):
    """A host that must not be needed."""

    def run(self, order: Order) -> dict[str, Any]:
        raise AssertionError(f"asked for {order.kind}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all rows run, with the files that they name."""
    made = tmp_path_factory.mktemp("typed")
    write_files(made)
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the current one; studies that a row leaves are removed."""
    known = set((folder / "reports").iterdir())
    monkeypatch.chdir(folder)
    hurry(monkeypatch)
    yield folder
    for study in set((folder / "reports").iterdir()) - known:
        shutil.rmtree(study)


def ask(host: type[RecordedHost], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (search, forecast, guide):
        monkeypatch.setattr(module, "HostSet", partial(host, RECORDED))


def check(row: BadInput, code: int, out: str, err: str) -> None:
    """Hold what a command ended with against its row."""
    assert code == row.code, err or out
    assert "Traceback" not in err
    assert "RecursionError" not in err
    if row.code == FINE:
        return
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("Error: ")
    assert row.names.lower() in err.lower()
    assert not {name for name in OURS if name in err}
    assert not out or "--json" in row.arguments


def run(row: BadInput, folder: Path) -> None:
    """Run a row in this process, and check its end and that nothing was written."""
    before = set(snapshot(folder))
    result = CliRunner().invoke(app, list(row.arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    check(row, result.exit_code, result.stdout, result.stderr)
    if row.code != FINE:
        assert set(snapshot(folder)) == before


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.what)
def test_every_bad_input_ends_in_one_clear_line(row: BadInput, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(UntilAccepted, monkeypatch)
    run(row, here)


@pytest.mark.parametrize("row", TAKEN, ids=lambda row: row.what)
def test_what_only_looks_wrong_is_accepted(row: BadInput, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(UntilAccepted, monkeypatch)
    with pytest.raises(Accepted):
        run(row, here)


@pytest.mark.nightly
@pytest.mark.parametrize("row", TAKEN, ids=lambda row: row.what)
def test_what_only_looks_wrong_is_searched_to_its_end(
    row: BadInput, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(InThisProcess, monkeypatch)
    run(row, here)


@pytest.mark.nightly
@pytest.mark.parametrize("row", FOR_REAL, ids=lambda row: row.what)
def test_and_so_it_does_as_a_command_with_the_real_host(row: BadInput, here: Path) -> None:
    before = set(snapshot(here))
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *row.arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=hurried(),
    )
    check(row, done.returncode, done.stdout, done.stderr)
    assert set(snapshot(here)) == before


@pytest.mark.nightly
def test_code_of_a_model_that_ends_the_process_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"model_type": "ours", "auto_map": {"AutoConfig": "ours.Ours"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "ours.py").write_text("import sys\nsys.exit(3)\n")
    words = ["search", "./model", "-b", "4", "--device", "cpu", "--trust-remote-code"]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=hurried(),
    )
    assert done.returncode == errors.InvalidRequest.exit_code
    (line,) = done.stderr.splitlines()
    assert "sys.exit(3)" in line


EARLY = {
    *("no trials", "a model that is missing", "a config with no positions", "data that are missing", "an empty text"),
    *("an empty folder of data", "a report folder that is a file", "no file of training arguments"),
    *("a space with an unknown setting", "an estimate of a missing model", "a guide of no model"),
}


@pytest.mark.parametrize("row", [row for row in ROWS if row.what in EARLY], ids=lambda row: row.what)
def test_what_needs_no_model_and_no_device_is_refused_before_a_host_is_asked(
    row: BadInput, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(NobodyAsked, monkeypatch)
    run(row, here)


def test_a_study_that_is_open_elsewhere_is_refused_before_a_host_is_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "search gpt2-mini -b 8 --device cpu --sequence-length 32 --n-trials 1 --search-space quick --no-history"
    ask(UntilAccepted, monkeypatch)
    assert isinstance(CliRunner().invoke(app, words).exception, Accepted)
    study = here / "reports" / "gpt2-mini-causal-lm-gb8-cpu"
    ask(NobodyAsked, monkeypatch)
    with (study / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert str(study.relative_to(here)) in result.stderr
