"""Access to the service: tokens and sessions, roles, the server's names, and limits of bodies and of wrong tokens."""

import asyncio
import contextlib
import ipaddress
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import APIKeyCookie, HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from autotune.service.accounts import PAGE_ROLES, USER, Accounts, Caller
from autotune.service.identity import Named, proxy_user
from autotune.service.problems import SECURITY_HEADERS, Problem, respond

COOKIE = "autotune_session"
SAFE = ("GET", "HEAD", "OPTIONS")
MOST_BYTES = 64 * 1024
"""Largest request body."""
MOST_FAILURES, WINDOW_S = 10, 60.0
"""Wrong tokens of one address within these seconds; further ones are not recorded. A valid one is always accepted."""
MOST_TURNS, TURN_S = 8, 10.0
"""Requests that change something at a time, of the threads that all share; seconds that further ones wait."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HERE = ("127.0.0.0/8", "::1")
"""Networks of this machine, with traffic that no network sees."""
HEALTH = ("/livez", "/readyz")
"""Paths that may be requested by any host name."""

_Bearer = Annotated[Any, Security(HTTPBearer(auto_error=False, description="A token of `autotune token create`."))]
_Cookie = Annotated[Any, Security(APIKeyCookie(name=COOKIE, auto_error=False, description="A session of the page."))]


class Limit:
    """Wrong tokens by address, of the last minute."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._swept_at = 0.0

    def add(self, address: str) -> None:
        """Count one more; entries older than a minute are dropped. Raises Problem 429 for an address with too many."""
        now = time.monotonic()
        with self._lock:  # requests are checked in several threads
            if now > self._swept_at + 1:
                self._times = {key: times for key, times in self._times.items() if times[-1] > now - WINDOW_S}
                self._swept_at = now
            times = self._times.setdefault(address, deque(maxlen=MOST_FAILURES))
            if len(times) == MOST_FAILURES and (wait := times[0] + WINDOW_S - now) > 0:
                retry = {"Retry-After": str(int(wait) + 1)}
                raise Problem(429, "Too many wrong tokens came from this address.", "Wait a minute.", headers=retry)
            times.append(now)


def address_of(request: Request) -> str:
    """The caller's address, as the server or its proxy sees it."""
    return request.client.host if request.client else ""


def cookie_name(request: Request, name: str = COOKIE) -> str:
    """The session's cookie; encrypted it can only come from this host: browsers take `__Host-` from nobody else."""
    return f"__Host-{name}" if request.url.scheme == "https" else name


def caller(request: Request) -> Caller:
    """Sender of this request, by the token or the session that it carries; raises Problem 401 or 429.

    A session that is to change something counts only from the page's origin.
    """
    state, signed_in = request.state, None
    accounts: Accounts = request.app.state.accounts
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    state.has_session = False
    if scheme.lower() == "bearer":
        if (signed_in := accounts.caller(secret.strip())) is None:
            _refuse(request, "token")
    elif cookie := request.cookies.get(cookie_name(request)):
        signed_in = accounts.session(cookie)
        if signed_in and (named := proxy_user(request)) and named[0] != signed_in.user:
            signed_in = None
        state.has_session = signed_in is not None
        if signed_in and request.method not in SAFE and not is_same_origin(request):
            raise Problem(403, "This request comes from another site.", kind="cross-site")
    if signed_in is None:
        raise Problem(
            401,
            "A valid token is needed.",
            "Send `Authorization: Bearer hfat_...`; `autotune token create` makes one.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    who: Caller = signed_in
    state.caller = who
    return who


def sign_in(request: Request, secret: str) -> str | None:
    """The id of a new session for the owner of this token, to be kept in the cookie; None for a wrong one.

    Raises Problem 403 for a role that sees no page, 429 after too many wrong ones.
    """
    accounts: Accounts = request.app.state.accounts
    who = accounts.caller(secret.strip())
    if who is not None and not who.may("viewer"):
        raise Problem(403, f"The role {who.role} cannot use the page.", "Sign in with a token of another role.")
    if who is None:
        _refuse(request, "sign-in")
        return None
    accounts.record(who, "sign-in", "done", remote=address_of(request))
    return accounts.sign_in(who)


def sign_in_as(request: Request, named: Named | None, issuer: str) -> str:
    """The id of a new session for the user whom this issuer names, with the highest role of their groups; None: it names nobody.

    Raises Problem 403 for nobody and for who has no role here, 429 after too many of them.
    """
    user, groups = named or ("", [])
    roles = {request.app.state.settings.roles.get(group) for group in (*groups, "*")}
    role = next((role for role in PAGE_ROLES if role in roles), None)
    if role is None or not re.fullmatch(USER, user):
        _refuse(request, "sign-in")
        message = f"{user[:80]!r} has no role on this server." if user else f"{issuer} did not confirm who you are."
        raise Problem(403, message, "Try again, or ask an administrator.")
    accounts: Accounts = request.app.state.accounts
    session_id, who = accounts.sign_in_as(user, role, issuer)
    accounts.record(who, "sign-in", "done", remote=address_of(request))
    return session_id


def _refuse(request: Request, action: str) -> None:
    """Count and record a caller who is not let in. Raises Problem 429 after too many of one address."""
    request.app.state.failures.add(address_of(request))
    request.app.state.accounts.record(None, action, "refused", remote=address_of(request))


def needs(role: str) -> Any:
    """A dependency: the caller, who must have this role or a higher one. Raises Problem 401, 403 or 429."""

    async def check(request: Request, _bearer: _Bearer, _cookie: _Cookie) -> AsyncIterator[Caller]:
        found = await run_in_threadpool(caller, request)
        if request.method not in SAFE:
            await request.form()  # whole, before it takes a turn
        if not found.may(role):
            raise Problem(403, f"This needs the role {role}; {found.user} has {found.role}.")
        async with _turn(request):
            yield found

    return Depends(check, scope="function")


@contextlib.asynccontextmanager
async def _turn(request: Request) -> AsyncIterator[None]:
    """A turn to change something. Who waits for one holds no thread, so that others read meanwhile. Raises Problem 503."""
    if request.method in SAFE:
        yield
        return
    turns: asyncio.Semaphore = request.app.state.turns
    try:
        async with asyncio.timeout(TURN_S):
            await turns.acquire()
    except TimeoutError:
        raise Problem(503, "Too many requests wait to be written.", "Try again later.") from None
    try:
        yield
    finally:
        turns.release()


def is_same_origin(request: Request) -> bool:
    """True if a browser sends this from the page itself."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}"


class Guard:
    """Refuses strange peers, host names and long bodies; adds the security headers; answers HEAD as GET.

    Strange are other peers than the proxies of an unencrypted server, and other host names than the server's. Headers that
    name a user are taken out if they are not a proxy's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, total, is_head, is_sent = Request(scope), 0, scope["method"] == "HEAD", False
        if is_head:
            scope["method"] = "GET"
        settings = request.app.state.settings
        if settings.identity_headers and not _is_in(address_of(request), settings.behind_proxy):
            foreign = {name.lower().encode() for name in settings.identity_headers}
            scope["headers"] = [header for header in scope["headers"] if header[0].lower() not in foreign]

        async def send_with_headers(message: Message) -> None:
            nonlocal is_sent
            if is_sent:
                return
            if is_head and message["type"] == "http.response.body":
                message, is_sent = {"type": "http.response.body", "body": b""}, True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        async def receive_within_limit() -> Message:
            nonlocal total
            if is_sent:  # this also ends a stream
                return {"type": "http.disconnect"}
            message = await receive()
            total += len(message.get("body", b""))
            if total > MOST_BYTES:
                raise _too_large()
            return message

        if problem := _refusal(request):
            await respond(request, problem)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive_within_limit, send_with_headers)


def _too_large() -> Problem:
    return Problem(413, f"The body has more than {MOST_BYTES} bytes.", kind="content-too-large")


def _refusal(request: Request) -> Problem | None:
    settings = request.app.state.settings
    is_health = request.url.path in HEALTH
    if settings.is_for_proxies and not (is_health or _is_in(address_of(request), (*settings.behind_proxy, *HERE))):
        advice = "Use the proxy's address. Start the server with --behind-proxy ADDRESS if this is the proxy."
        return Problem(403, "Only a proxy that encrypts may connect to this port.", advice, kind="not-the-proxy")
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        host = None
    names = {name.lower() for name in (*LOOPBACK, settings.host, *settings.allowed_hosts)}
    if host not in names and not is_health:
        advice = "Start the server with --allowed-host NAME."
        return Problem(421, "This server is not known by that name.", advice, kind="wrong-host")
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers and (
        "content-length" in request.headers or request.scope["http_version"] < "1.1"
    ):
        # RFC 9112, 6.1: a proxy may have taken what follows for the body, or the body for what follows.
        text = "The request has a Transfer-Encoding, and a Content-Length or HTTP/1.0."
        return Problem(400, text, headers={"Connection": "close"})
    return _too_large() if not length.isdecimal() or int(length) > MOST_BYTES else None


def _is_in(text: str, networks: Sequence[str]) -> bool:
    """True if this address is in these networks."""
    try:
        return any(ipaddress.ip_address(text) in ipaddress.ip_network(network) for network in networks)
    except ValueError:
        return False


def install(app: FastAPI) -> None:
    """Guard this application; `app.state` has its `settings`, and its `accounts` when it answers."""
    app.state.turns = asyncio.Semaphore(MOST_TURNS)
    app.state.failures = Limit()
    if proxies := app.state.settings.behind_proxy:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=[*proxies])  # within: the guard sees who connects
    app.add_middleware(Guard)
