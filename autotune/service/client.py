"""The client of a server: searches there like `autotune.search` here."""

import ipaddress
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from platformdirs import user_config_path

from autotune.core import errors
from autotune.core.errors import InvalidRequest, SearchFailed, ServerFailed
from autotune.core.io import read_json, write_json
from autotune.core.request import OPTIONS
from autotune.core.text import printable

if TYPE_CHECKING:
    import httpx2

    from autotune.commands.result import TuningResult
    from autotune.study.plan import Watch

Fetched = TypeVar("Fetched")
API = "/api/v1"
ARCHIVE = "study.tar.gz"
"""The artifact with the files that `TuningResult.load` reads."""

SILENCE_S = 45.0
"""Seconds without a byte after which a stream is opened again; the server sends a comment every 15 s."""

RETRIES_S = (0.5, 1.0, 2.0)
"""Seconds to wait before each further attempt of a request after its response was lost."""

MOST_BYTES = 2**28
"""Most bytes of a fetched file, and of an unpacked archive."""

LOST = 20
"""Number of times that the stream of a search may be lost without an event between: some minutes, which an upgrade takes."""


def is_loopback(host: str) -> bool:
    """True if this host is this machine, by its address or as localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tokens_file() -> Path:
    """`$XDG_CONFIG_HOME/autotune/tokens.json`, by default in ~/.config."""
    return user_config_path("autotune") / "tokens.json"


def save_token(url: str, token: str) -> Path:
    """Keep a token for this address in `tokens_file`, which only this user may read; returns its path."""
    path = tokens_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(path, _saved_tokens(path) | {url: token}, mode=0o600)
    return path


def _saved_tokens(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    if path.stat().st_mode & 0o077:
        raise InvalidRequest(f"Others may read the tokens in {path}.", f"Run: chmod 600 {path}")
    try:
        return dict(read_json(path))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"The tokens in {path} cannot be read: {error}.", "Delete it; `autotune login` writes it."
        ) from error


def connect(url: str, token: str | None = None) -> "Client":
    """A client of the server of `autotune serve` at this address.

    Nothing is sent yet.

    Args:
        url: Address of the server.
        token: By default the value of AUTOTUNE_TOKEN in the environment, if AUTOTUNE_SERVER is this address or not set, else
            the one that `autotune login` keeps.

    Raises:
        InvalidRequest: There is no token, or the address cannot be one, or is an unencrypted one of another machine.
    """
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"{url!r} is not an address of a server.", "Write it as https://tune.example.org.")
    if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        advice = "Use https://, or reach the server by SSH: ssh -L 8321:127.0.0.1:8321 MACHINE"
        raise InvalidRequest(f"A token would be sent to {url} unencrypted.", advice)
    advice = "Copy all of it, or ask an admin for another one."
    is_meant = os.environ.get("AUTOTUNE_SERVER", url).rstrip("/") == url
    if not token and is_meant and (token := os.environ.get("AUTOTUNE_TOKEN")):
        advice = "Set AUTOTUNE_TOKEN to a valid one, or unset it."
    if not token:
        token, advice = _saved_tokens(tokens_file()).get(url), f"Run: autotune login {url}"
    if not token:
        raise InvalidRequest(f"There is no token for {url}.", advice)
    return Client(url, token, advice)


class Client:
    """Searches on one server.

    Every method raises InvalidRequest if the server refuses, ServerFailed if it is out of reach or cannot answer now.
    advice: if the token is refused.
    """

    def __init__(self, url: str, token: str, advice: str) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise InvalidRequest(
                "A client needs httpx2, which is not installed.", "pip install 'hf-autotune[service]'"
            ) from error
        self.url, self._advice = url, advice
        self._http = httpx2.Client(
            base_url=f"{url}{API}",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=httpx2.Timeout(30.0, read=SILENCE_S),
            limits=httpx2.Limits(max_keepalive_connections=0),  # no connection stays open and has to be closed
            event_hooks={"response": [self._check]},
        )
        self._lost = httpx2.TransportError

    def search(
        self,
        model: str | os.PathLike[str],
        global_batch_size: int,
        *,
        watch: "Watch | bool | None" = None,
        output_dir: str | os.PathLike[str] = "reports",
        **options: Any,
    ) -> "TuningResult":
        """Search on the server, wait for the end, and fetch the report into `output_dir`.

        Model and options as of `autotune.search`, models and data by the names that the server gives them (`team:llama`);
        `name` and `priority` of the search in addition. watch: as there. KeyboardInterrupt leaves the search running.
        Raises NothingFits and SearchFailed as `autotune.search` does.
        """
        from autotune.report.live.views import following

        search_id = self.submit(model, global_batch_size, **options)["id"]
        with following(watch) as show:
            self.follow(search_id, show)
        return self.result(search_id, output_dir)

    def submit(self, model: str | os.PathLike[str], global_batch_size: int, **options: Any) -> dict[str, Any]:
        """Queue a search; its state on the server. Sent again if a response is lost, and queued once."""
        body = _body(options) | {"model": os.fspath(model), "global_batch_size": global_batch_size}
        return self._ask("POST", "/searches", json=body, headers={"Idempotency-Key": str(uuid4())})

    def read(self, search_id: str) -> dict[str, Any]:
        """A search as the server describes it: state, progress, headline, ..."""
        return self._ask("GET", f"/searches/{search_id}")

    def cancel(self, search_id: str, now: bool = False) -> dict[str, Any]:
        """End a search after its running probe, or now; the search afterwards."""
        return self._ask("POST", f"/searches/{search_id}/cancel", json={"now": now})

    def me(self) -> dict[str, Any]:
        """User and role of the token."""
        return self._ask("GET", "/me")

    def readiness(self) -> dict[str, Any]:
        """State of the server: `ready` to accept and run searches, and the results of its `checks`."""
        return self._ask("GET", f"{self.url}/readyz")

    def follow(self, search_id: str, watch: "Watch") -> dict[str, Any]:
        """Call `watch` for each event of a search until it has ended; the search afterwards.

        A lost connection is opened again, and resumes after the last event.
        """
        from autotune.service.view import View

        view, after, failures = View(), "0", 0
        while True:
            try:
                with self._http.sse(f"/searches/{search_id}/events", headers={"Last-Event-ID": after}) as source:
                    for event in source if source.response.status_code == 200 else ():
                        after, failures = event.id or after, 0
                        if event.data and (progress := view.progress(event.event, json.loads(event.data))):
                            watch(progress)
                if (search := self.read(search_id))["ended_at"]:
                    return search
                failures += 1  # a server that stops ends its streams
            except self._lost as error:
                failures += 1
                if failures > LOST:
                    raise self._out_of_reach(error) from error
            sleep(min(failures, 15))

    def result(self, search_id: str, output_dir: str | os.PathLike[str] = "reports") -> "TuningResult":
        """The result of a search that has ended; its report is fetched into a folder of `output_dir`.

        Raises NothingFits or SearchFailed if there is none.
        """
        from autotune.commands.result import TuningResult
        from autotune.report import FILES

        search, output_dir = self.read(search_id), Path(output_dir)
        names = {file["name"] for file in self._sent("GET", f"/searches/{search_id}/files").json()}
        folder = None
        if ARCHIVE in names:
            output_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=output_dir) as scratch:
                (fetched := Path(scratch) / "study").mkdir()  # others may read it, unlike the temporary folder
                if not unpack(self._file(search_id, ARCHIVE), fetched, MOST_BYTES):
                    raise self._too_large(ARCHIVE)
                for name in names.intersection(FILES):
                    (fetched / name).write_bytes(self._file(search_id, name))
                result = TuningResult.load(fetched)
                end = f"-{search_id[-8:]}"  # it keeps two searches of one name apart, also from one made here
                folder = output_dir / re.sub(r"[^\w.-]", "-", f"{result.name.removesuffix(end)}{end}")
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(fetched, folder)
        kept = f"Report so far: {folder}" if folder else ""
        if problem := search.get("problem"):
            kind = getattr(errors, f"{problem['type']}", None)
            if not (isinstance(kind, type) and issubclass(kind, errors.AutotuneError)):
                kind = SearchFailed
            raise kind(problem["message"], f"{problem['advice']} {kept}".strip())
        if search["state"] != "done" or folder is None:
            raise SearchFailed(f"The search {search_id} is {search['state']}.", kept or f"See {self.page(search_id)}")
        return TuningResult.load(folder)

    def page(self, search_id: str) -> str:
        """Address of a search's page."""
        return f"{self.url}/searches/{search_id}"

    def _file(self, search_id: str, name: str) -> bytes:
        def fetch() -> bytes:
            content = bytearray()
            with self._http.stream("GET", f"/searches/{search_id}/files/{name}", headers={"Accept": "*/*"}) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise self._too_large(name)
            return bytes(content)

        return self._repeated(fetch)

    def _too_large(self, name: str) -> ServerFailed:
        return ServerFailed(
            f"{name} of {self.url} has more than {MOST_BYTES} bytes.", "Check that it is an autotune server."
        )

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._sent(method, path, **options)
        try:
            reply: dict[str, Any] = response.json()
        except ValueError as error:
            raise ServerFailed(f"No autotune server answers at {self.url}.", "Check the address.") from error
        return reply

    def _sent(self, method: str, path: str, **options: Any) -> "httpx2.Response":
        return self._repeated(lambda: self._http.request(method, path, **options))

    def _repeated(self, request: Callable[[], Fetched]) -> Fetched:
        """Result of this call; made again if its response is lost. Raises ServerFailed."""
        for wait in (*RETRIES_S, None):
            try:
                return request()
            except self._lost as error:
                if wait is None:
                    raise self._out_of_reach(error) from error
                sleep(wait)
        raise AssertionError("unreachable")

    def _out_of_reach(self, error: Exception) -> ServerFailed:
        return ServerFailed(
            f"The server at {self.url} cannot be reached: {error}.", "Check the address and that it runs."
        )

    def _check(self, response: "httpx2.Response") -> None:
        """Raise the error of a response that is one."""
        is_unready = response.status_code == 503 and response.url.path.endswith("/readyz")
        if not response.is_error or is_unready:
            return
        response.read()
        plain = response.headers.get("content-type", "").startswith("application/problem+json")
        problem = response.json() if plain else {}
        message = problem.get("detail") or f"The server answers {response.status_code}."
        fields = [error for error in problem.get("errors", ()) if error["detail"] != message]
        message = printable("; ".join([message, *(f"{error['pointer']}: {error['detail']}" for error in fields)]))
        if response.status_code in (502, 503, 504):  # it starts, stops, or waits for its database
            raise self._lost(message.rstrip("."))
        advice = printable(problem.get("advice") or "")
        if response.status_code == 401:
            message, advice = f"{self.url} refuses the token.", self._advice
        of_request = response.status_code < 500 and response.status_code not in (409, 429)
        raise (InvalidRequest if of_request else ServerFailed)(message, advice)


def unpack(archive: bytes, folder: Path, most: int) -> bool:
    """Write the files of a tar archive into this folder, without links and what is outside; False if they have more bytes.

    tarfile has its filters only from Python 3.11.4 on.
    """
    with tarfile.open(fileobj=BytesIO(archive)) as opened:
        for entry in opened:
            if (most := most - entry.size) < 0:
                return False
            path = (folder / entry.name).resolve()
            file = opened.extractfile(entry) if entry.isfile() else None
            if file is not None and path.is_relative_to(folder.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read())
                os.utime(path, (entry.mtime, entry.mtime))
    return True


def _body(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the server takes them: the content of local files instead of their paths. Raises InvalidRequest."""
    local = {name: option for name, option in OPTIONS.items() if option.local}
    for name, option in local.items():
        if options.get(name) and options[name] != option.default:
            raise InvalidRequest("It cannot be used with a server.", option.local, name)
    body = {name: value for name, value in options.items() if name not in local and value is not None}
    if body.get("args") is not None:
        from autotune.space.user_arguments import read_user_arguments

        body["args"] = read_user_arguments(body["args"]).fields
    if os.path.isfile(space := body.get("space", "")):
        body["space"] = Path(space).read_text(encoding="utf-8")
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in body.items()}
