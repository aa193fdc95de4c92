"""The wheel, installed alone in a folder with a blank that nothing can write, used elsewhere and without a network.

Libraries that it needs come from the tests' environment, of which nothing of autotune is seen.
"""

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.hurry import ROOT, hurried

pytest.importorskip("hatchling", reason="hatchling is not installed (of the extra dev)")

NETWORK = ROOT / "tests" / "network.sh"
SEARCH = "search gpt2-mini -b 16 --sequence-length 32 --device cpu --search-space quick --n-trials 2"
TRY_TO_SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'a', ('198.51.100.1', 9))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel."""
    folder = tmp_path_factory.mktemp("place") / "an environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    python = str(folder / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, timeout=300)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder


def variables(recorded: bool = True) -> dict[str, str]:
    """Of a process that hurries, and finds no autotune but the wheel's."""
    return hurried(recorded=recorded) | {"PYTHONPATH": str(ROOT / "tests" / "hurried")}


@pytest.fixture(scope="module")
def may_have_a_network() -> None:
    if subprocess.run([NETWORK, "/dev/null", "/tmp", "true"], capture_output=True, timeout=300).returncode:
        pytest.skip("this user may make no network: needs root, unshare and ip")


def in_a_network(environment: Path, words: list[str], folder: Path) -> dict[str, int]:
    """Interface -> packets that this command sent."""
    counters = folder / "counters"
    command = [str(NETWORK), str(counters), str(environment), *words]
    done = subprocess.run(
        command, cwd=folder, env=variables(recorded=False), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^ *(\w+):(.*)$", counters.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(numbers.split()[9]) for name, numbers in lines}


def test_it_holds_the_shipped_files_and_nothing_of_the_tests(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert folders == {"autotune", next(name for name in folders if name.endswith(".dist-info"))}
    spaces = {path.name for path in (ROOT / "search_spaces").iterdir()}
    assert {Path(name).name for name in names if name.startswith("autotune/search_spaces/")} == spaces
    for file in ("py.typed", "core/gpus.csv", "workload/model/builtin.yaml", "report/templates/page.html"):
        assert f"autotune/{file}" in names
    assert [name for name in names if re.fullmatch(r"autotune/service/migrations/versions/\w+\.py", name)]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_python_finds_no_other_autotune(environment: Path, tmp_path: Path) -> None:
    code = "import autotune, importlib.metadata as m; print(autotune.__file__, m.version('hf-autotune') == autotune.__version__)"
    command = [str(environment / "bin" / "python"), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith(str(environment)), done.stderr
    assert done.stdout.endswith(" True\n")


@pytest.mark.nightly
@pytest.mark.usefixtures("may_have_a_network")
def test_a_search_sends_nothing_and_needs_no_network(environment: Path, tmp_path: Path) -> None:
    """A real search by the installed command; that a packet would be counted is shown first."""
    python, autotune = str(environment / "bin" / "python"), str(environment / "bin" / "autotune")
    assert in_a_network(environment, [python, "-c", TRY_TO_SEND], tmp_path)["outside"] > 0
    sent = in_a_network(environment, [autotune, *shlex.split(SEARCH)], tmp_path)
    assert sent == {"lo": 0, "outside": 0, "nobody": 0}
    (study,) = (tmp_path / "reports").iterdir()
    assert (study / "report.html").stat().st_size > 10_000
    assert "completed" in (study / "trials.csv").read_text(encoding="utf-8")
