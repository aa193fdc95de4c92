"""The server of `autotune serve`: its settings, the application made of its parts, its start and its end."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import structlog
import uvicorn
from fastapi import FastAPI
from platformdirs import user_state_path

from autotune.core.errors import InvalidRequest, StorageFailed
from autotune.service import access, api, operation, pages, problems
from autotune.service.accounts import PAGE_ROLES, Accounts
from autotune.service.client import is_loopback
from autotune.service.cluster import ClusterDevices
from autotune.service.connections import MOST_CONNECTIONS, Connection
from autotune.service.devices import Devices
from autotune.service.dispatcher import Dispatcher
from autotune.service.identity import Provider
from autotune.service.roots import Roots
from autotune.service.store import Store
from autotune.service.stream import Hub
from autotune.service.tables import DatabaseAway, DatabaseTaken, ServerLock, connect_database

CONNECTIONS_S = 3
"""Seconds that responses may take to end once the server stops; the rest of the 30 is for the running searches."""

STANDBY_S = 1.0
"""Seconds between attempts to take a database that another server has."""

TOKEN_FILE = "admin.token"
"""File of the first admin's token in the state folder."""

log = structlog.get_logger("autotune")


def default_state() -> Path:
    """`$XDG_STATE_HOME/autotune`, by default ~/.local/state/autotune."""
    return user_state_path("autotune")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server. Raises InvalidRequest if it would be open to a network without encryption."""

    host: str = "127.0.0.1"
    port: int = 8321  #: 0: a free one
    state: Path = field(default_factory=default_state)  #: folder of the database and of the running searches
    database: str | None = None  #: URL; None: SQLite in the state folder
    devices: Sequence[str] | None = None  #: that are lent, as cpu or cuda:0; None: all GPUs, else the CPU
    executor: str = "local"  #: whose devices these are: this machine's, or those of a Ray cluster (ray)
    address: str = ""  #: of the Ray cluster; by default RAY_ADDRESS
    allow_unauthenticated: bool = False  #: use a Ray cluster on which everyone can run programs
    standby: bool = False  #: wait until no other server has the database
    models: Mapping[str, Path] = field(default_factory=dict)  #: name of a root -> its folder
    data: Mapping[str, Path] = field(default_factory=dict)  #: the same
    hub: str = "off"  #: off, cached or online
    hub_patterns: Sequence[str] = ()  #: of hub ids that requests may name
    allowed_hosts: Sequence[str] = ()  #: names by which the server may be addressed, in addition to `host`
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: Sequence[str] = ()  #: addresses or networks of the proxies; only their forwarded headers count
    oidc_issuer: str = ""  #: URL of the OpenID Connect provider with which people sign in, too
    oidc_client: str = ""  #: id of this server there
    oidc_secret: str = field(default_factory=lambda: os.environ.get("AUTOTUNE_OIDC_SECRET", ""), repr=False)
    oidc_scope: str = "openid email profile"
    oidc_claims: Sequence[str] = ("email", "roles")  #: of the ID token: with the user's name, and their groups
    identity_headers: Sequence[str] = ()  #: of the proxy: with the user's name, and their groups
    roles: Mapping[str, str] = field(default_factory=dict)  #: group, or * for everybody -> role
    keep: float | None = None  #: days after which the audit, events and folders of ended searches go; None: never
    log_format: str = "json"  #: or text

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("TLS needs a certificate and its key.", "Pass --tls-cert and --tls-key.")
        if not (is_loopback(self.host) or self.tls_cert or self.behind_proxy):
            raise InvalidRequest(
                f"{self.host} can be reached from other machines, and tokens would be sent to it unencrypted.",
                "Pass --tls-cert and --tls-key, or --behind-proxy ADDRESS of a proxy that encrypts.",
            )
        for text in self.behind_proxy:
            _check_network(text)
        if self.oidc_issuer or self.identity_headers:
            self._check_identities()
        for name, folder in [*self.models.items(), *self.data.items()]:
            if not folder.is_dir():
                advice = "Write NAME=FOLDER. Mount other stores as a folder, on every node."
                raise InvalidRequest(f"The folder {folder} of {name!r} is not there.", advice)

    def _check_identities(self) -> None:
        address = urlsplit(self.oidc_issuer)
        is_safe = address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname or ""))
        if self.oidc_issuer and not is_safe:
            raise InvalidRequest(f"{self.oidc_issuer!r} is not an https:// address.", "Pass --oidc-issuer https://….")
        if self.oidc_issuer and not self.oidc_client:
            raise InvalidRequest("This server needs an id at the provider.", "Pass --oidc-client ID too.")
        if self.identity_headers and not self.behind_proxy:
            raise InvalidRequest("Anybody could send the headers with a user's name.", "Pass --behind-proxy ADDRESS.")
        if len(self.oidc_claims) != 2 or len(self.identity_headers) not in (0, 2):
            raise InvalidRequest("Two names are needed: of the user's name and of their groups.", "Write email,roles.")
        if not self.roles or {*self.roles.values()} - {*PAGE_ROLES}:
            raise InvalidRequest("People who sign in need a role.", "Pass --role GROUP=viewer, submitter or admin.")

    @property
    def is_for_proxies(self) -> bool:
        """True if only the proxies may connect: anybody else would send tokens unencrypted."""
        return bool(self.behind_proxy) and self.tls_cert is None and not is_loopback(self.host)

    @property
    def database_url(self) -> str:
        """The database as SQLAlchemy names it; may hold a password."""
        return self.database or f"sqlite:///{self.state / 'service.db'}"

    def url(self, port: int) -> str:
        """Address of the page on this port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}"


def _check_network(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        message = f"--behind-proxy {text!r} is not an address or a network: {error}."
        raise InvalidRequest(message, "Write it as 10.0.0.7 or 10.0.0.0/24.") from error
    if network.prefixlen == 0:
        message = f"--behind-proxy {text!r} is every address: anybody could claim to be anybody."
        raise InvalidRequest(message, "Name the proxy's address or network.")


def create_app(settings: Settings) -> FastAPI:
    """The application, with its database open and locked until it has stopped.

    Raises StorageFailed for a state folder or database that cannot be used, or that another server uses; InvalidRequest
    for missing devices.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan)
    state = app.state
    with contextlib.ExitStack() as stack:
        _make_state_folder(settings.state)
        engine = connect_database(settings.database_url)
        stack.callback(engine.dispose)
        lock = stack.enter_context(ServerLock(engine, settings.state))
        engine = lock.engine

        def changed(search_id: str) -> None:
            state.hub.wake(search_id)
            state.dispatcher.wake()

        state.settings, state.engine = settings, engine
        state.store, state.accounts = Store(engine, changed, lock), Accounts(engine)
        state.hub = Hub(state.accounts.is_valid)
        state.failure, state.stop = None, state.hub.close
        state.devices = lent_devices(settings)
        stack.callback(state.devices.close)
        roots = dict(settings.models), dict(settings.data), settings.hub, settings.hub_patterns
        state.roots = Roots(*roots, executor=settings.executor)
        keep = None if settings.keep is None else timedelta(days=settings.keep)
        state.dispatcher = Dispatcher(state.store, state.devices, state.roots, settings.state, keep)
        if settings.executor == "ray":
            state.devices.on_change = state.dispatcher.wake
        problems.install(app)
        access.install(app)
        operation.install(app)
        pages.install(app)
        routers = [api.router, pages.router, operation.router]
        if settings.oidc_issuer:
            state.provider = Provider(settings)
            routers.append(pages.provider_router)
        for router in routers:
            app.include_router(router)
        state.closing = stack.pop_all()
    return app


def lent_devices(settings: Settings) -> Devices | ClusterDevices:
    """The devices that a server with these settings lends. Raises InvalidRequest."""
    if settings.executor == "local":
        return Devices(settings.devices)
    kinds = settings.devices or ("cuda",)
    return ClusterDevices(settings.address, kinds, settings.allow_unauthenticated, is_awaited=not settings.standby)


def _make_state_folder(state: Path) -> None:
    """Make it for this user alone, or leave an existing one unchanged; raises StorageFailed if that is not a server's."""
    try:
        with contextlib.suppress(FileExistsError):
            state.parent.mkdir(parents=True, exist_ok=True)
            state.mkdir(mode=0o700)
            return
        facts, names = state.stat(), {path.name for path in state.iterdir()} - {"lost+found"}
    except OSError as error:
        raise StorageFailed(
            f"The state folder {state} cannot be used: {error.strerror}.", "Name another one with --state."
        ) from error
    is_foreign = names and not names & {"service.db", "serve.lock"}
    wrong = ""
    if facts.st_uid != os.geteuid():
        wrong = "belongs to another user"
    elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "can be changed by other users"
    elif is_foreign and facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        wrong = "holds other files, and other users can read it"
    if wrong:
        raise StorageFailed(f"The folder {state} {wrong}.", f"Name one that is made for it: --state {state}/autotune")


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The dispatcher runs as long as requests are answered; the database is let go once it has ended."""

    def stop(dispatching: "asyncio.Task[None]") -> None:
        if not dispatching.cancelled() and (error := dispatching.exception()):
            log.critical(
                "dispatcher_ended", error=str(error), exc_info=None if isinstance(error, DatabaseTaken) else error
            )
            app.state.failure = error
            app.state.stop()

    dispatching = asyncio.create_task(app.state.dispatcher.run())
    dispatching.add_done_callback(stop)
    try:
        with app.state.closing:
            yield
            dispatching.cancel()
            await asyncio.wait([dispatching])
    finally:
        dispatching.cancel()


class _Server(uvicorn.Server):
    """uvicorn's server, which is announced once signals end it properly.

    Its streams of events end when it stops, and a second Ctrl-C ends it at any point.
    """

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
            raise KeyboardInterrupt
        super().handle_exit(sig, frame)
        self.config.app.state.hub.close()  # type: ignore[union-attr]


def serve(settings: Settings, announce: Callable[[dict[str, Any]], None], is_private: bool = False) -> None:
    """Answer requests and run searches until SIGTERM or Ctrl-C; running searches resume at the next start.

    announce: gets the address, the state folder, and if there was no token the secret of the first admin's, once requests are
    accepted. is_private: nobody else reads or keeps its argument; else the secret is in a file, and its path is given.
    Raises the errors of `create_app`; InvalidRequest for an unusable address or certificate; DatabaseTaken at the end if
    another server has taken the database.
    """
    os.umask(0o077)
    operation.log_to_stderr(settings.log_format)
    with contextlib.ExitStack() as stack:
        if settings.standby:
            app = _taken(settings)
            stack.push(app.state.closing)
        listener = stack.enter_context(_listening_soon(settings) if settings.standby else listening(settings))
        if not settings.standby:
            app = create_app(settings)
        config = uvicorn.Config(
            app,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            http=partial(Connection, tls=tls_of(settings)),  # type: ignore[arg-type]
            limit_concurrency=MOST_CONNECTIONS,
            proxy_headers=False,  # the application's task: it must see who connects
            timeout_graceful_shutdown=CONNECTIONS_S,
        )
        facts = {"url": settings.url(listener.getsockname()[1]), "state": str(settings.state)}
        server = _Server(config, lambda: announce(facts | _first_token(app, is_private)))

        def stop() -> None:
            server.should_exit = True
            app.state.hub.close()

        app.state.stop = stop
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises the signal again after the end
            if server.force_exit:
                raise
        if app.state.failure is not None:
            raise app.state.failure


def _taken(settings: Settings) -> FastAPI:
    """The application, once no other server has the database. Raises the errors of `create_app`."""
    is_waiting = False
    while True:
        try:
            return create_app(settings)
        except (DatabaseTaken, DatabaseAway) as error:
            if not is_waiting and isinstance(error, DatabaseAway):
                raise
            if not is_waiting:
                log.info("standing_by", reason=error.message)
            is_waiting = True
            time.sleep(STANDBY_S)


def _listening_soon(settings: Settings) -> socket.socket:
    """The socket of a server that takes the place of another one, which may still be closing it."""
    until = time.monotonic() + CONNECTIONS_S
    while True:
        try:
            return listening(settings)
        except InvalidRequest:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _first_token(app: FastAPI, is_private: bool) -> dict[str, str | None]:
    """The secret of the first admin's token, or the path of a file that holds it; None if there was a token."""
    secret: str | None = app.state.accounts.first_admin()
    if secret is None or is_private:
        return {"token": secret, "token_file": None}
    path = app.state.settings.state / TOKEN_FILE
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{secret}\n")
    return {"token": None, "token_file": str(path)}


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Certificate and key; None without. Raises InvalidRequest if they cannot be used."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRequest(
            f"The TLS certificate cannot be used: {error}.", "Check --tls-cert and --tls-key."
        ) from error
    return context


MOST_PORT = 65535


def listening(settings: Settings) -> socket.socket:
    """The socket of the server. Raises InvalidRequest for an address that is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    if not 0 <= settings.port <= MOST_PORT:  # Python would leave a socket open
        raise InvalidRequest(f"There is no port {settings.port}.", f"Pass a --port of 0 to {MOST_PORT}.")
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        reason = (
            "is in use"
            if getattr(error, "errno", 0) == errno.EADDRINUSE
            else f"cannot be used: {str(error).rstrip('.')}"
        )
        raise InvalidRequest(
            f"Port {settings.port} of {settings.host} {reason}.", "Pass another --port, or end what uses it."
        ) from error
    # Its connections inherit this: head and body are two packets, and the second would wait 40 ms for the first one's receipt.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
