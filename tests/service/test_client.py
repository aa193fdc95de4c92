"""The client: where it finds its token, what it sends, and what it makes of a server's answers."""

import contextlib
import io
import json
import stat
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from autotune.core.errors import AutotuneError, InvalidRequest, ServerFailed
from autotune.service import client
from autotune.service.client import connect, save_token, tokens_file
from autotune.study.plan import Progress

URL = "https://tune.example.org"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of settings, and no token in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("AUTOTUNE_TOKEN", "AUTOTUNE_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "sleep", lambda seconds: None)
    return tmp_path


# Tokens ---------------------------------------------------------------------------------------------------------


def test_a_kept_token_is_this_user_s_alone_and_belongs_to_its_server() -> None:
    path = save_token(URL, "hfat_first")
    save_token("http://localhost:8321", "hfat_second")
    assert path == tokens_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {URL: "hfat_first", "http://localhost:8321": "hfat_second"}
    assert [file.name for file in path.parent.iterdir()] == ["tokens.json"]
    connect(f"{URL}/")
    with pytest.raises(InvalidRequest, match=r"autotune login https://other\.example\.org"):
        connect("https://other.example.org")


def test_tokens_that_others_may_read_are_refused() -> None:
    save_token(URL, "hfat_first").chmod(0o640)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        connect(URL)


def test_a_damaged_file_of_tokens_is_named() -> None:
    save_token(URL, "hfat_first").write_text("{")
    with pytest.raises(InvalidRequest, match=r"tokens\.json cannot be read"):
        connect(URL)


@pytest.mark.parametrize("url", ["tune.example.org", "ftp://tune.example.org", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not an address"):
        connect(url, "hfat_any")


@pytest.mark.parametrize("url", ["http://tune.example.org", "http://10.0.0.7:8321", "http://127.0.0.1.example.org"])
def test_no_token_is_sent_unencrypted_to_another_machine(url: str) -> None:
    with pytest.raises(InvalidRequest, match="unencrypted"):
        connect(url, "hfat_any")
    for here in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost"):
        connect(here, "hfat_any")


def test_a_token_of_the_environment_is_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TOKEN", "hfat_any")
    connect(URL)
    monkeypatch.setenv("AUTOTUNE_SERVER", f"{URL}/")
    connect(URL)
    with pytest.raises(InvalidRequest, match="no token"):
        connect("https://other.example.org")


# Answers --------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Answers each request with the next of the server's answers: (status, media type, body), None: hangs up."""

    def answer(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.requests.append((self.command, self.path, dict(self.headers), json.loads(body or b"null")))
        answer = server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, media_type, text = answer
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        content = text if isinstance(text, bytes) else text.encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who has enough hangs up
            self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *words: Any) -> None:
        """Nothing on standard error."""


@contextlib.contextmanager
def answering(*answers: tuple[int, str, str | bytes] | None) -> Iterator[Any]:
    """A server on the loopback with these answers; `requests`: what it was sent."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.requests = [*answers], []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        server.client = connect(f"http://127.0.0.1:{server.server_port}", "hfat_any")
        yield server
        assert not server.answers
    finally:
        server.shutdown()
        server.server_close()


def plain(status: int = 200, **data: Any) -> tuple[int, str, str]:
    kind = "application/problem+json" if status >= 400 else "application/json"
    return status, kind, json.dumps(data)


def test_a_search_is_sent_once_more_with_the_same_key_where_its_answer_is_lost() -> None:
    with answering(None, plain(201, id="abc")) as server:
        assert server.client.submit("bert-mini", 16, n_trials=4, fix=["precision=bf16"], task=None) == {"id": "abc"}
    (_, path, first, body), (_, _, second, again) = server.requests
    assert path == "/api/v1/searches"
    assert body == again == {"model": "bert-mini", "global_batch_size": 16, "n_trials": 4, "fix": ["precision=bf16"]}
    assert first["Idempotency-Key"] == second["Idempotency-Key"]
    assert first["Authorization"] == "Bearer hfat_any"


def test_files_are_sent_as_their_content(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("learning_rate: 1e-4\nreport_to: none\noutput_dir: here\n")
    (tmp_path / "space.yaml").write_text("parameters:\n  precision: [fp32, bf16]\n")
    with answering(plain(201, id="abc")) as server:
        server.client.submit(Path("m"), 16, args=tmp_path / "args.yaml", space=tmp_path / "space.yaml")
    body = server.requests[0][3]
    assert body["args"]["learning_rate"] == 1e-4
    assert "output_dir" not in body["args"]
    assert body["space"].startswith("parameters:")


@pytest.mark.parametrize("option", ["fresh", "trust_remote_code", "study_name", "report_to"])
def test_options_that_cannot_travel_are_refused_before_anything_is_sent(option: str) -> None:
    with answering() as server, pytest.raises(InvalidRequest, match=f"{option}: It cannot be used with a server"):
        server.client.submit("bert-mini", 16, **{option: "x"})


@pytest.mark.parametrize(
    ("status", "kind"), [(401, InvalidRequest), (404, InvalidRequest), (422, InvalidRequest), (429, ServerFailed)]
)
def test_a_refusal_is_an_error_with_its_detail_advice_and_fields(status: int, kind: type[AutotuneError]) -> None:
    errors = [{"pointer": "/fix/presicion", "detail": "unknown setting"}]
    problem = plain(status, detail="There are errors.", advice="Mend them.", errors=errors)
    with answering(problem) as server, pytest.raises(AutotuneError) as caught:
        server.client.read("abc")
    assert type(caught.value) is kind
    if status == 401:
        assert caught.value.message == f"{server.client.url} refuses the token."
        return
    assert caught.value.message == "There are errors.; /fix/presicion: unknown setting"
    assert caught.value.advice == "Mend them."


@pytest.mark.parametrize(
    ("where", "advice"),
    [
        ("argument", "Copy all of it, or ask an admin for another one."),
        ("variable", "Set AUTOTUNE_TOKEN to a valid one, or unset it."),
        ("file", "Run: autotune login {url}"),
    ],
)
def test_who_sent_a_wrong_token_is_told_what_to_do_about_that_one(
    where: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(plain(401, detail="A valid token is needed.")) as server:
        url = server.client.url
        if where == "variable":
            monkeypatch.setenv("AUTOTUNE_TOKEN", "hfat_old")
        elif where == "file":
            save_token(url, "hfat_old")
        with pytest.raises(InvalidRequest) as caught:
            connect(url, "hfat_old" if where == "argument" else None).me()
    assert caught.value.advice == advice.format(url=url)


def test_a_server_out_of_reach_is_one_message() -> None:
    with answering() as server:
        pass
    with pytest.raises(ServerFailed, match="cannot be reached"):
        server.client.read("abc")


@pytest.mark.parametrize("status", [200, 301, 503])
def test_what_is_no_server_of_autotune_is_named(status: int) -> None:
    with (
        answering((status, "text/html", "<html>")) as server,
        pytest.raises(ServerFailed, match="No autotune server answers"),
    ):
        server.client.readiness()


def test_a_proxy_without_its_server_is_asked_again() -> None:
    with answering((502, "text/html", "<html>"), plain(503, ready=False)) as server:
        assert server.client.readiness() == {"ready": False}


@pytest.mark.parametrize("kind", ["did_you_mean", "InvalidRequest.__init__", "AutotuneError", "FEW", 7, None])
def test_a_problem_of_any_type_is_an_error_of_this_package(kind: object, tmp_path: Path) -> None:
    problem = {"type": kind, "message": "It failed.", "advice": "Mend it."}
    ended = plain(200, id="abc", state="failed", problem=problem)
    with (
        answering(ended, (200, "application/json", "[]")) as server,
        pytest.raises(AutotuneError, match=r"It failed\."),
    ):
        server.client.result("abc", tmp_path)


@pytest.mark.parametrize("what", ["the file", "what it unpacks to"])
def test_an_archive_of_any_size_is_not_kept(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million zeros are a thousand bytes of an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("request.json")
        entry.size = 10**6
        archive.addfile(entry, io.BytesIO(bytes(10**6)))
    monkeypatch.setattr(client, "MOST_BYTES", 500 if what == "the file" else 10**5)
    names = (200, "application/json", json.dumps([{"name": "study.tar.gz"}]))
    content = (200, "application/gzip", packed.getvalue())
    too_large = pytest.raises(ServerFailed, match=r"study\.tar\.gz of .* has more than")
    with answering(plain(200, id="abc", state="done"), names, content) as server, too_large:
        server.client.result("abc", tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_an_archive_is_unpacked_without_what_leads_elsewhere_by_python_3_11_0_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`filter` of tarfile is new in Python 3.11.4; that of Debian 12 has none."""

    def refuse(*_: Any, **options: Any) -> None:
        raise TypeError(f"got an unexpected keyword argument {[*options]}")

    for name in ("extract", "extractall"):
        monkeypatch.setattr(tarfile.TarFile, name, refuse)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("probes/0000/order.json", "../outside.json", f"{tmp_path}/outside.json"):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = 2, 1_700_000_000
            archive.addfile(entry, io.BytesIO(b"{}"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            entry = tarfile.TarInfo("link.json")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    (folder := tmp_path / "study").mkdir()
    assert client.unpack(packed.getvalue(), folder, 10**6)
    files = list(tmp_path.rglob("*.json"))
    assert files == [folder / "probes" / "0000" / "order.json"]
    assert (files[0].read_bytes(), files[0].stat().st_mtime) == (b"{}", 1_700_000_000)


def stream(*events: tuple[int, str, dict[str, Any]]) -> tuple[int, str, str]:
    lines = [f"id: {number}\nevent: {kind}\ndata: {json.dumps(body)}\n\n" for number, kind, body in events]
    return 200, "text/event-stream", "retry: 2000\n\n: alive\n\n" + "".join(lines)


def test_a_stream_that_is_lost_goes_on_after_its_last_event_until_the_search_has_ended() -> None:
    queued = {"state": "queued", "attempt": 0}
    restarted = {"state": "queued", "attempt": 1, "reason": "the server was started again"}
    shown: list[Progress] = []
    with answering(
        stream((1, "state", queued), (4, "state", restarted)),
        plain(200, ended_at=None),
        None,
        (502, "text/html", "the proxy is alone"),
        stream((9, "state", {"state": "done", "attempt": 2})),
        plain(200, ended_at="2026-11-23T10:00:00Z", state="done"),
    ) as server:
        assert server.client.follow("abc", shown.append)["state"] == "done"
    assert [progress.message for progress in shown] == ["queued", "queued: the server was started again"]
    streams = [headers for _, path, headers, _ in server.requests if path.endswith("/events")]
    assert [headers["Last-Event-ID"] for headers in streams] == ["0", "4", "4", "4"]
