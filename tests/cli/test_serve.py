"""`autotune serve`, `token`, `login` and what speaks to a server: who may, what is kept, and what is missing."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.service.client import tokens_file
from autotune.service.tables import open_database
from tests.service.servers import Server, serving

SEARCH = ["search", "bert-mini", "--global-batch-size", "8", "--server", "http://127.0.0.1:9"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of state and settings of their own, and no token in the environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AUTOTUNE_TOKEN", raising=False)


def run(*words: str, input: str | None = None) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command."""
    done = CliRunner().invoke(app, words, input=input)
    return done.exit_code, done.stdout, done.stderr


def data(*words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def used(tmp_path: Path) -> None:
    """The database that a server has left where the commands of the test look for it."""
    open_database(f"sqlite:///{tmp_path}/state/autotune/service.db").dispose()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server whose state is where the commands of the test look for it."""
    with serving(tmp_path) as server:
        yield server


# Tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("list",), ("create", "anna"), ("revoke", "00000000")])
def test_tokens_are_of_a_database_that_a_server_has_used(words: tuple[str, ...], tmp_path: Path) -> None:
    code, _, err = run("token", *words, "--state", str(tmp_path / "elsewhere"))
    assert code == 2
    assert err.startswith(f"Error: No autotune serve has used the database sqlite:///{tmp_path}/elsewhere/service.db.")
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_made_listed_and_revoked_and_their_secret_is_shown_once(used: None) -> None:
    made = data("token", "create", "anna", "--role", "viewer", "--days", "90")
    assert made["secret"].startswith(f"hfat_{made['id']}_")
    (listed,) = data("token", "list")["tokens"]
    assert listed | {"secret": made["secret"]} == made
    assert (listed["user"], listed["role"], listed["revoked_at"]) == ("anna", "viewer", None)
    code, out, _ = run("token", "list")
    assert code == 0
    assert made["id"] in out
    assert made["secret"] not in out
    assert data("token", "revoke", made["id"]) == {"revoked": made["id"]}
    assert "revoked" in run("token", "list")[1]
    code, _, err = run("token", "revoke", made["id"])
    assert (code, err) == (2, f"Error: There is no token {made['id']!r}. Run `autotune token list` to see their ids.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("make", "anna"), "There is no action 'make'."),
        (("create",), "token create needs a name."),
        (("create", "anna", "--role", "king"), "There is no role 'king'."),
        (("list", "--database", "mysql://here/x"), "The --database is neither"),
    ],
)
def test_what_makes_no_token_is_one_line(words: tuple[str, ...], message: str, used: None) -> None:
    code, _, err = run("token", *words)
    assert code == 2
    assert err.startswith(f"Error: {message}")
    assert len(err.splitlines()) == 1


def test_a_token_made_while_the_server_runs_is_good_for_it(server: Server) -> None:
    anna = data("token", "create", "anna")
    answer = server.http.get("/me", headers={"Authorization": f"Bearer {anna['secret']}"})
    assert answer.json() == {"user": "anna", "role": "submitter", "token_id": anna["id"], "most_devices": None}
    data("token", "revoke", anna["id"])
    assert server.http.get("/me", headers={"Authorization": f"Bearer {anna['secret']}"}).status_code == 401


def test_a_configuration_is_checked_without_a_start(tmp_path: Path, certificate: Path) -> None:
    state = ("--state", f"{tmp_path}/state", "--port", "0", "--devices", "cpu")
    code, out, _ = run("serve", "--check", *state)
    assert code == 0, out
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 7
    assert not (tmp_path / "state").exists()
    code, out, _ = run(
        "serve", "--check", *state[:-1], "cuda:9", "--tls-cert", f"{certificate}", "--tls-key", f"{certificate}"
    )
    assert code == 1
    wrong = {line.split()[1]: line for line in out.splitlines() if line.startswith("WRONG")}
    assert wrong.keys() == {"certificate", "devices"}
    assert "days" in wrong["certificate"]


def test_the_check_says_that_a_server_runs(server: Server) -> None:
    found = data(
        "serve", "--check", "--state", f"{server.state}", "--port", server.url.rsplit(":", 1)[1], "--devices", "cpu"
    )
    assert found["database"]["found"].endswith("; a server holds it")
    assert found["address"]["found"].endswith("of the server that runs")
    assert all(each["ok"] for each in found.values())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of ten days and its key, in a file."""
    path = tmp_path / "server.pem"
    made = tmp_path / "made.pem"
    words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "10")
    subprocess.run(["openssl", *words, "-keyout", path, "-out", made], check=True, capture_output=True)
    with path.open("a") as file:
        file.write(made.read_text())
    return path


# Login ------------------------------------------------------------------------------------------------------------


def test_login_tries_the_token_and_keeps_it(server: Server) -> None:
    code, out, err = run("login", f"{server.url}/", input=f"{server.token}\n")
    assert (code, out) == (0, f"Signed in at {server.url} as admin (admin); the token is kept in {tokens_file()}.\n"), (
        err
    )
    assert server.token not in out
    assert run("doctor", "--server", server.url)[1].startswith(f"{server.url}: ready\n")


def test_login_keeps_no_token_that_the_server_refuses(server: Server) -> None:
    code, _, err = run("login", server.url, input="hfat_wrong\n")
    assert (code, err) == (
        2,
        f"Error: {server.url} refuses the token. Copy all of it, or ask an admin for another one.\n",
    )
    assert not tokens_file().exists()


# What is missing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["serve"], ["token", "list"], ["login", "http://127.0.0.1:9"], SEARCH, ["doctor", *SEARCH[-2:]]]
)
def test_without_the_extra_each_command_says_how_to_install_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_TOKEN", "hfat_any")
    for name in ("fastapi", "httpx2"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = run(*words, input="hfat_any\n")
    assert code == 2
    assert "pip install 'hf-autotune[service]'" in err
    assert len(err.splitlines()) == 1


def test_detach_wants_a_server() -> None:
    code, _, err = run(*SEARCH[:4], "--detach")
    assert (code, err) == (2, "Error: --detach leaves a search to a server. Pass --server URL too.\n")


@pytest.mark.parametrize("option", ["--fresh", "--trust-remote-code", "--study-name=x", "--report-to=wandb"])
def test_options_that_cannot_travel_are_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TOKEN", "hfat_any")
    code, _, err = run(*SEARCH, option)
    assert code == 2
    assert err.startswith(f"Error: {option.partition('=')[0]}: It cannot be used with a server. ")


def test_without_a_token_login_is_the_advice() -> None:
    code, _, err = run(*SEARCH)
    assert (code, err) == (
        2,
        "Error: There is no token for http://127.0.0.1:9. Run: autotune login http://127.0.0.1:9\n",
    )


def test_login_without_a_token_asks_for_one() -> None:
    code, _, err = run("login", "http://127.0.0.1:9", input="\n")
    assert (code, err) == (2, "Error: No token was given. Type it, or send it on standard input.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "/srv"], "--models '/srv' is not NAME=FOLDER."),
        (["--models", "a=/tmp", "--models", "a=/usr"], "--models names a twice."),
        (["--port", "99999"], "There is no port 99999. Pass a --port of 0 to 65535."),
        (
            ["--models", "team=s3://bucket/models", "--hub", "online"],
            "The folder s3:/bucket/models of 'team' is not there",
        ),
        (["--hub", "on"], "There is no hub 'on'."),
        (["--log-format", "xml"], "There is no log format 'xml'."),
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines"),
        (["--oidc-issuer", "https://id.example.org", "--oidc-client", "a"], "People who sign in need a role."),
        (["--identity-headers", "X-User,X-Groups", "--role", "ml=viewer"], "Anybody could send the headers"),
    ],
)
def test_wrong_settings_of_a_server_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    code, _, err = run("serve", *words)
    assert code == 2
    assert err.startswith(f"Error: {message}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "state").exists()
