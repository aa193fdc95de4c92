"""Operation: health, metrics, request ids, and a log without secrets."""

import contextlib
import json
import logging
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog
import structlog.testing
from starlette.testclient import TestClient

from autotune.core.errors import AutotuneError, NothingFits
from autotune.service import access, operation, problems, tables
from autotune.service.server import Settings, create_app
from autotune.service.tables import ServerLock, writing
from tests.hurry import ROOT
from tests.service.application import wait_until
from tests.service.servers import serving


@pytest.fixture
def client(migrated: Path, tmp_path: Path) -> Iterator[TestClient]:
    """A server in this process, as an anonymous caller sees it."""
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copyfile(migrated, tmp_path / "state" / "service.db")
    app = create_app(Settings(state=tmp_path / "state", devices=("cpu",)))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def token(client: TestClient, role: str) -> dict[str, str]:
    """A header with a new token of this role."""
    _, secret = client.app.state.accounts.create("anna", role, None, "a test")  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {secret}"}


def state(client: TestClient) -> Any:
    return client.app.state  # type: ignore[attr-defined]


# Health -----------------------------------------------------------------------------------------------------------


def test_a_server_that_runs_is_alive_and_ready_and_shows_details_to_who_has_a_token(client: TestClient) -> None:
    assert client.get("/livez").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"ready": True}
    checks = dict.fromkeys(("database", "dispatcher", "state folder", "devices"), "ok")
    assert client.get("/readyz", headers=token(client, "viewer")).json() == {"ready": True, "checks": checks}
    wrong = {"Authorization": "Bearer hfat_00000000_0"}
    assert client.get("/readyz", headers=wrong).json() == {"ready": True}


def unready(client: TestClient, headers: dict[str, str] | None = None) -> dict[str, str]:
    """What is wrong, by the name of its check. headers: with a token, by default a new one."""
    answer = client.get("/readyz", headers=headers or token(client, "viewer"))
    assert (answer.status_code, client.get("/readyz").json()) == (503, {"ready": False})
    return {name: text for name, text in answer.json()["checks"].items() if text != "ok"}


def test_a_dispatcher_that_hangs_is_not_ready(client: TestClient) -> None:
    state(client).dispatcher.ticked_at -= 60
    assert unready(client).keys() == {"dispatcher"}


def test_a_server_whose_database_another_one_took_is_not_ready(client: TestClient, tmp_path: Path) -> None:
    headers = token(client, "viewer")
    assert client.get("/readyz", headers=headers).json()["ready"]
    (tmp_path / "state" / "serve.lock").unlink()
    with ServerLock(state(client).engine, tmp_path / "state"):
        state(client).dispatcher.wake()
        wait_until(lambda: state(client).failure)
        wait_until(lambda: not client.get("/readyz").json()["ready"])
        assert unready(client, headers)["dispatcher"].startswith("Another autotune serve ")


def test_checks_that_hang_are_not_ready_and_hold_no_thread_for_each_caller(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, made = threading.Event(), []
    monkeypatch.setattr(operation, "HANGING_S", 0.2)
    monkeypatch.setitem(operation.CHECKS, "database", lambda state: made.append(1) or (ending.wait(60) and ""))
    for _ in range(5):
        assert client.get("/readyz").status_code == 503
    assert unready(client) == {"checks": "did not end within 0 s"}
    ending.set()
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert len(made) <= 2


def test_a_database_that_another_process_holds_stops_no_reader(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LOCKED_S", 3)
    monkeypatch.setattr(access, "TURN_S", 1.0)
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copyfile(migrated, tmp_path / "state" / "service.db")
    app = create_app(Settings(state=tmp_path / "state", devices=("cpu",)))
    with (
        TestClient(app, base_url="http://localhost") as client,
        contextlib.closing(sqlite3.connect(tmp_path / "state" / "service.db", isolation_level=None)) as other,
        ThreadPoolExecutor(60) as threads,
    ):
        headers = token(client, "submitter")
        assert client.get("/api/v1/me", headers=headers).status_code == 200
        other.execute("BEGIN IMMEDIATE")
        body = {"model": "bert-mini", "global_batch_size": 8}
        posts = [threads.submit(client.post, "/api/v1/searches", headers=headers, json=body) for _ in range(60)]
        time.sleep(0.3)
        begun = time.monotonic()
        assert client.get("/api/v1/me", headers=headers).status_code == 200
        assert time.monotonic() - begun < 2, "it waited for a thread"
        checks = client.get("/readyz", headers=headers).json()["checks"]
        assert "another process has had it locked" in checks["database"]
        assert {post.result().status_code for post in posts} == {503}
        other.execute("ROLLBACK")
        monkeypatch.setattr(access, "TURN_S", 60.0)
        assert client.post("/api/v1/searches", headers=headers, json=body).status_code == 201
        posts = [threads.submit(client.post, "/api/v1/searches", headers=headers, json=body) for _ in range(20)]
        assert {post.result().status_code for post in posts} == {201}


def test_every_metric_of_the_dashboard_and_of_the_alerts_is_there(client: TestClient) -> None:
    text = client.get("/metrics", headers=token(client, "metrics")).text
    there = {*re.findall(r"^# TYPE (\w+)", text, re.M)}
    for name in ("grafana.json", "alerts.yaml"):
        used = {*re.findall(r"(?:autotune|process)_\w+", (ROOT / "docs" / "service" / name).read_text())}
        assert {re.sub("_(bucket|count)$", "", metric) for metric in used} <= there, name


def test_a_full_disk_is_not_ready(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "LEAST_FREE_BYTES", 2**80)
    assert re.fullmatch(r"has .*iB left", unready(client)["state folder"])


def test_a_state_folder_that_is_gone_and_no_devices_are_not_ready(client: TestClient, tmp_path: Path) -> None:
    state(client).devices.names = ()
    state(client).settings = Settings(state=tmp_path / "gone")
    assert unready(client).keys() == {"state folder", "devices"}


def test_a_database_that_refuses_is_not_ready_and_counted(client: TestClient) -> None:
    before = client.get("/metrics", headers=token(client, "metrics")).text
    assert "autotune_database_errors_total 0.0" in before
    scraper = token(client, "metrics")
    with writing(state(client).engine) as connection:
        connection.execute(sa.text("ALTER TABLE sessions RENAME TO gone"))
    with pytest.raises(AutotuneError):
        state(client).accounts.session("x")
    assert "autotune_database_errors_total 1.0" in client.get("/metrics", headers=scraper).text


# The log ----------------------------------------------------------------------------------------------------------


def test_a_request_keeps_its_id_or_gets_one(client: TestClient) -> None:
    assert client.get("/livez", headers={"X-Request-ID": "from-a-proxy.1"}).headers["X-Request-ID"] == "from-a-proxy.1"
    for wrong in ("", "a b", "x" * 65, "ü"):
        made = client.get("/livez", headers={"X-Request-ID": wrong.encode()}).headers["X-Request-ID"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_the_log_tells_who_requested_what_and_holds_no_token_body_or_query(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        body = {"model": "bert-mini", "global_batch_size": 16, "name": "a secret name"}
        server.http.post("/searches", params={"dry_run": "true"}, json=body, headers={"X-Request-ID": "mine"})
        server.http.get(f"{server.url}/livez")
        server.http.get("/me", params={"token": server.token})
    (entry,) = [entry for entry in server.log if entry.get("request_id") == "mine"]
    assert entry.keys() >= {"timestamp", "level", "seconds", "remote"}
    assert (entry["event"], entry["method"], entry["path"]) == ("request", "POST", "/api/v1/searches")
    assert (entry["status"], entry["user"]) == (200, "admin")
    text = server.stderr.read_text()
    assert not [word for word in (server.token, "secret name", "bert-mini", "/livez", "dry_run") if word in text]


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Logging of the test's process is as it was afterwards."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = handlers, level
    structlog.reset_defaults()


def test_libraries_log_in_the_same_format_and_with_their_tracebacks_and_without_secrets(
    own_logging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    operation.log_to_stderr("json")
    secret = "hfat_" + "0" * 8  # made here, so that the traceback's line does not hold it
    try:
        raise ValueError("out of order")
    except ValueError:
        logging.getLogger("some.library").exception("it failed")
    text = capsys.readouterr().err
    assert "out of order" in text
    assert secret not in text
    entry = json.loads(text)
    assert (entry["event"], entry["logger"], entry["level"]) == ("it failed", "some.library", "error")


def test_the_log_says_why_the_server_failed_to_answer() -> None:
    with structlog.testing.capture_logs() as entries:
        answer = problems.problem_of(error := NothingFits("nothing was measured"))
    assert answer.status_code == 500
    assert "nothing" not in answer.detail
    assert [entry["exc_info"] for entry in entries] == [error]
