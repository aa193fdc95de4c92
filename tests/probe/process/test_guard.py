"""The guard of the user's files, by each of its means."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.probe.process import guard
from autotune.probe.process.launcher import supervised
from autotune.probe.process.supervisor import KEPT
from tests.digests import digest
from tests.probe.process.guarded import fill

HERE = Path(guard.__file__).parents[3]
NOBODY = 65534


@dataclass
class Ended:
    """What a guarded program says: what is not guarded, and what it could not change in its folder and in another one."""

    unguarded: str
    failed: dict[str, str]
    failed_elsewhere: dict[str, str]


@pytest.fixture
def folders() -> Iterator[Path]:
    """A folder that every user can enter, with `own`, `other` and `kept` in it."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-test-"))
    folder.chmod(0o755)
    for name in ("own", "other", "kept"):
        (folder / name).mkdir()
    fill(folder / "own")
    fill(folder / "other")
    yield folder
    shutil.rmtree(folder)


def guarded(folders: Path, means: str, user: int = 0) -> Ended:
    """The program's end in `own`, whose changes none of `own` and `other` sees. user: that it becomes, 0 for this one."""
    if user:
        for path in (*folders.iterdir(), *folders.rglob("*")):
            os.chown(path, user, user)
    before = digest(folders)
    program = [
        sys.executable,
        "-m",
        "tests.probe.process.guarded",
        str(folders / "other"),
        str(folders / "kept"),
        str(user),
    ]
    environment = {**os.environ, guard.MEANS: means, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        program, cwd=folders / "own", env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    unguarded, *failed = json.loads(ended.stdout)
    after = {name: state for name, state in digest(folders).items() if not name.startswith("kept")}
    assert after == {name: state for name, state in before.items() if name in after or name != "kept"}
    assert (folders / "kept" / "answer").read_text() == "real"
    return Ended(unguarded, *failed)


def has(means: str) -> bool:
    """True if this system allows it."""
    environment = {**os.environ, guard.MEANS: means, "PYTHONPATH": str(HERE)}
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-m", guard.__name__, scratch]
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return "not guarded" not in ended.stdout


needs_layers = pytest.mark.skipif(not has("layers"), reason="no mount namespaces here")
needs_landlock = pytest.mark.skipif(not has("landlock"), reason="no Landlock here")


@needs_layers
def test_whatever_a_trial_changes_it_changes_in_its_layers(folders: Path) -> None:
    ended = guarded(folders, "layers")
    assert (ended.unguarded, ended.failed, ended.failed_elsewhere) == ("", {}, {})


@needs_layers
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_user_has_layers_over_the_folder_and_all_else_is_read_only(folders: Path) -> None:
    ended = guarded(folders, "layers", NOBODY)
    assert (ended.unguarded, ended.failed) == ("", {})
    removes = os.fork()
    if not removes:  # what the user's layers leave is the user's to remove
        os.setresuid(NOBODY, NOBODY, NOBODY)
        shutil.rmtree(folders / "kept" / "layers", ignore_errors=True)
        os._exit(0)
    os.waitpid(removes, 0)
    assert not (folders / "kept" / "layers").exists()


@needs_landlock
def test_without_layers_everything_is_refused_and_the_message_names_the_file_and_a_way_out(folders: Path) -> None:
    ended = guarded(folders, "landlock python")
    assert "the working folder is read only" in ended.unguarded
    assert ended.failed.keys() == ended.failed_elsewhere.keys()
    assert {"sqlite", "by rm", "by sed", "npy", "chmod", "touched"} <= ended.failed.keys()
    message = f"a trial writes nothing of yours: {folders / 'own' / 'written'} ({guard.ADVICE})"
    assert message in ended.failed["written"]


def test_by_python_alone_what_python_changes_is_refused_and_the_rest_is_named(folders: Path) -> None:
    for name in ("own", "other"):
        for unseen in ("sqlite", "by sed"):
            (folders / name / unseen).unlink()
        shutil.rmtree(folders / name / "removed by rm")
        (folders / name / "sqlite").mkdir()  # which nothing can open
    ended = guarded(folders, "python")
    assert "what commands, databases and native code write is not guarded" in ended.unguarded
    assert {"written", "new", "appended", "renamed", "removed tree", "log", "mapped", "shelf"} <= ended.failed.keys()


def test_caches_of_libraries_are_written_unless_they_hold_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "project").mkdir()
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "TORCH_HOME": str(tmp_path), "PYTHONPATH": str(HERE)}
    code = (
        "import sys, pathlib; from autotune.probe.process.guard import guard; "
        "guard(pathlib.Path('../layers'), []); "
        "open('../hub/kept', 'w').close(); pathlib.Path('refused').touch()"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "project", env=environment, capture_output=True, check=False
    )
    assert (tmp_path / "hub" / "kept").exists()
    assert not (tmp_path / "project" / "refused").exists()


@pytest.mark.parametrize(
    ("means", "said"),
    [
        pytest.param("layers", "written", marks=needs_layers),
        pytest.param("landlock python", "a trial writes nothing of yours", marks=needs_landlock),
    ],
)
def test_a_command_and_what_it_starts_are_guarded_from_their_first_line(
    means: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, project = tmp_path / "kept", tmp_path / "project"
    kept.mkdir()
    project.mkdir()
    (project / "done").write_text("10000")
    before = digest(project)
    monkeypatch.chdir(project)
    startup = str(HERE / "autotune" / "commands" / "run" / "startup")
    paths = os.pathsep.join([startup, str(HERE)])
    environment = {**os.environ, KEPT: json.dumps([str(kept)]), guard.MEANS: means, "PYTHONPATH": paths}
    code = (
        "import os\ntry:\n    open('done', 'w').write('2'); os.chmod('done', 0o777); print('written')\n"
        f"except OSError as error: print(error)\nos.system('echo 2 > done')\nopen({str(kept / 'answer')!r}, 'w').write('real')"
    )
    with open(tmp_path / "log", "wb") as log:
        process, channel = supervised([str(kept / "host"), sys.executable, "-c", code], environment, log)
    with channel, process:
        assert json.loads(channel.recv(1000))["host_ended"] == 0
    assert said in (tmp_path / "log").read_text()
    assert digest(project) == before
    assert [path.name for path in kept.iterdir()] == ["answer"]
