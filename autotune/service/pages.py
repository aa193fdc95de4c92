"""The page: the API's responses as HTML, rendered here and complete without JavaScript."""

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlencode
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import StringConstraints, ValidationError
from starlette.exceptions import HTTPException

from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.core.prospect import more_to_gain
from autotune.core.request import OPTIONS, TASKS, is_switch
from autotune.core.units import format_bytes, format_seconds
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.report.templates import text_of
from autotune.service import actions, responses, server_api, wording
from autotune.service.access import COOKIE, cookie_name, is_same_origin, sign_in, sign_in_as
from autotune.service.accounts import RIGHTS, SESSION
from autotune.service.body import SearchBody, parse_body
from autotune.service.devices import matching_options
from autotune.service.identity import PROXY, Provider, proxy_user
from autotune.service.problems import Problem, problem_of, respond
from autotune.service.records import DONE, ENDED, QUEUED
from autotune.service.responses import Admin, Submitter, Viewer
from autotune.service.store import Store
from autotune.service.wording import FIELDS, STATES, Record
from autotune.space.file import read_yaml
from autotune.workload.model.builtin import BUILT_IN

_here = resources.files("autotune.service") / "static"
_STATIC = {"palette.css": text_of("palette.css")} | {
    name: (_here / name).read_text("utf-8") for name in ("page.css", "live.js")
}
_templates = Environment(
    loader=PackageLoader("autotune.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"bytes": format_bytes, "seconds": format_seconds}
_templates.filters |= {"ago": wording.ago, "speed": wording.speed_text}
_templates.filters |= {"changes": wording.changes, "interval": wording.interval, "outline": wording.outline}
_templates.filters |= {"gain": more_to_gain, "values_of": wording.values_of}
_templates.filters |= {"command_line": wording.command_line, "python": wording.python}
_templates.filters["stamp"] = lambda moment: f"{moment:%d %b %Y, %H:%M} UTC"
_templates.globals |= {"STATES": STATES, "version": hashlib.sha256(repr(_STATIC).encode()).hexdigest()[:8]}


def shown(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """The template with these values, and the user."""
    common: dict[str, Any] = {"request": request, "server": str(request.base_url).rstrip("/")}
    common |= {"who": getattr(request.state, "caller", None), "session": getattr(request.state, "has_session", False)}
    return HTMLResponse(_templates.get_template(f"{name}.html").render(common | values), status)


def to(path: str) -> RedirectResponse:
    """Redirection to another page."""
    return RedirectResponse(path, 303)


class PageRoute(APIRoute):
    """A route with errors as pages too; callers who are not signed in are sent to sign in."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (HTTPException, RequestValidationError, AutotuneError) as error:
                problem = problem_of(error)
            if problem.status_code == 401:
                query = f"?{request.url.query}" if request.url.query else ""
                page = f"{request.url.path}{query}" if request.method == "GET" else "/"
                return to(f"/login?next={quote(page)}")
            return problem_page(request, problem)

        return handle


def problem_page(request: Request, problem: Problem) -> Response:
    """The page of an response other than success."""
    values = {"message": problem.detail, "advice": problem.advice, "errors": problem.errors}
    response = shown(request, "problem", problem.status_code, **values)
    response.headers.update(problem.headers or {})
    return response


def install(app: FastAPI) -> None:
    """Answer browsers by a page, also if there is none at the path."""

    async def handle(request: Request, error: Exception) -> Response:
        is_page = not request.url.path.startswith(f"{responses.ROOT}/") and "text/html" in request.headers.get(
            "accept", ""
        )
        return problem_page(request, problem_of(error)) if is_page else respond(request, error)

    app.add_exception_handler(HTTPException, handle)


router = APIRouter(include_in_schema=False, route_class=PageRoute)
MOST_COMPARED = 8
ATTEMPT, ATTEMPT_S = "autotune_attempt", 600
"""Cookie of somebody who signs in at the provider, and seconds that they have."""
Field = Annotated[str, Form()]
Role = Annotated[Literal["viewer", "submitter", "admin", "metrics"], Form()]
Days = Annotated[float, Form(allow_inf_nan=False)]
SearchId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Style or script."""
    if name not in _STATIC:
        raise Problem(404, "There is no such file.")
    media_type = "text/css" if name.endswith("css") else "text/javascript"
    return Response(_STATIC[name], media_type=media_type, headers={"Cache-Control": "max-age=86400"})


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """The form for the token; a session for the user whom the proxy names."""
    if named := proxy_user(request):
        return _entered(request, sign_in_as(request, named, PROXY), next)
    return shown(request, "login", next=next, is_wrong=False)


provider_router = APIRouter(include_in_schema=False, route_class=PageRoute)
"""Pages of a server with an OpenID Connect provider."""


@provider_router.get("/login/provider")
async def to_provider(request: Request, next: str = "/") -> Response:
    """Redirection to the provider, which sends back to `from_provider`."""
    attempt = secrets.token_urlsafe(32)
    response = to(await request.app.state.provider.url(f"{request.base_url}login/done", attempt))
    _set_cookie(request, response, ATTEMPT, f"{attempt}.{quote(next, safe='')}", ATTEMPT_S, "lax")
    return response


@provider_router.get("/login/done")
async def from_provider(request: Request, code: str = "", state: str = "") -> Response:
    """A session for the user whom the provider confirms."""
    provider: Provider = request.app.state.provider
    attempt, _, next = request.cookies.get(cookie_name(request, ATTEMPT), "").partition(".")
    named = await provider.user(f"{request.base_url}login/done", attempt, code, state)
    response = _entered(request, await run_in_threadpool(sign_in_as, request, named, provider.issuer), unquote(next))
    _set_cookie(request, response, ATTEMPT, "", 0, "lax")
    return response


def _set_cookie(request: Request, response: Response, name: str, value: str, seconds: float, site: Any) -> None:
    is_tls, name = request.url.scheme == "https", cookie_name(request, name)
    response.set_cookie(name, value, max_age=int(seconds), secure=is_tls, httponly=True, samesite=site)


def _entered(request: Request, session_id: str, next: str) -> Response:
    """A page that opens the next one: on the way from another site a browser would not send the strict cookie there."""
    next = _own(next)
    response = shown(request, "entered", next=next)
    response.headers["Refresh"] = f"0; url={next}"
    _set_cookie(request, response, COOKIE, session_id, SESSION.total_seconds(), "strict")
    return response


def _own(page: str) -> str:
    """The address if it is a page of this server, else that of the first page."""
    return quote(page, safe="/%?=&+") if re.match(r"/(?![/\\])", page) else "/"


@router.post("/login")
def signed_in(request: Request, token: Field = "", next: Field = "/") -> Response:
    """A session for the owner of this token."""
    is_from_browser = "sec-fetch-site" in request.headers or "origin" in request.headers
    if is_from_browser and not is_same_origin(request):
        raise Problem(403, "This request comes from another site.")
    if (session_id := sign_in(request, token)) is None:
        return shown(request, "login", 401, next=next, is_wrong=True)
    response = to(_own(next))
    _set_cookie(request, response, COOKIE, session_id, SESSION.total_seconds(), "strict")
    return response


@router.post("/logout")
def signed_out(request: Request, _caller: Viewer) -> Response:
    """The session ends."""
    name = cookie_name(request)
    request.app.state.accounts.sign_out(request.cookies.get(name, ""))
    response = to("/login")
    response.delete_cookie(name, secure=request.url.scheme == "https")
    return response


@router.get("/")
def searches(
    request: Request,
    _caller: Viewer,
    state: responses.Text = None,
    owner: responses.Text = None,
    model: responses.Text = None,
    cursor: responses.Text = None,
) -> Response:
    """Searches, the newest first."""
    store: Store = request.app.state.store
    page, following = store.list(state=state or None, owner=owner or None, model=model or None, cursor=cursor)
    filters = {name: value for name, value in (("state", state), ("owner", owner), ("model", model)) if value}
    positions = {search.id: store.position(search) for search in page if search.state == QUEUED}
    counts = {name: number for name, number in store.count().items() if number}
    return shown(
        request,
        "searches",
        searches=[responses.shown(search, positions.get(search.id)) for search in page],
        filters=filters,
        counts=counts,
        can_compare=any(search.state == DONE for search in page),
        more=following and urlencode(filters | {"cursor": following}),
        last=store.last_change(),
        say=", ".join(f"{number} {STATES[name].lower()}" for name, number in counts.items()),
    )


@router.get("/new")
def new(
    request: Request, _caller: Submitter, source: Annotated[SearchId | None, Query(alias="from")] = None
) -> Response:
    """The form of a search, empty or as another search was."""
    given = _search(request, source)["request"] if source else {}
    rest = {name: value for name, value in given.items() if name not in (*FIELDS, "priority")}
    more = commented_yaml([], rest) if rest else ""
    return _form(request, {name: given.get(name, "") for name in FIELDS} | {"more": more})


async def _fields(request: Request) -> dict[str, str]:
    return {name: str(value).strip() for name, value in (await request.form()).items()}


@router.post("/new")
def submitted(request: Request, caller: Submitter, form: Annotated[dict[str, str], Depends(_fields)]) -> Response:
    """Check the form, and start the search if that was its button."""
    values = {name: form.get(name, "") for name in (*FIELDS, "more")}
    try:
        body = _body(values)
        if form.get("do") != "start":
            return _form(request, values, wanted=actions.check(request, caller, body))
        # The same form sent twice is one search, a changed one is another.
        key = hashlib.sha256(f"{form.get('key', '')} {body.model_dump_json()}".encode()).hexdigest()
        search, _ = actions.submit(request, caller, body, key)
    except (InvalidRequest, RequestValidationError) as error:
        problem = problem_of(error)
        text = f"{problem.detail} {problem.advice}".strip()
        is_one = isinstance(error, InvalidRequest)
        problems = dict.fromkeys(problem.errors or ["/more"], text) if is_one else problem.errors
        return _form(request, values, 422, problems=problems)
    return to(f"/searches/{search.id}")


def _body(values: Mapping[str, str]) -> SearchBody:
    """The body that a form states. Raises InvalidRequest, RequestValidationError."""
    try:
        fields = parse_body(json.dumps(read_yaml(values["more"], aliases=False) or {}).encode())
    except (TypeError, ValueError) as error:  # TypeError: a date is not JSON
        raise InvalidRequest(f"This cannot be read: {error}.") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("These are not options.", "Write a line NAME: VALUE for each.")
    for name in FIELDS:
        if text := values[name]:
            is_number = name == "global_batch_size" or (name in OPTIONS and OPTIONS[name].least is not None)
            fields[name] = int(text) if is_number and re.fullmatch(r"\d{1,18}", text) else is_switch(name) or text
    try:
        return SearchBody(**fields)
    except ValidationError as error:
        errors = [entry | {"loc": ("body", *entry["loc"])} for entry in error.errors()]
        raise RequestValidationError(errors, body=fields) from error


def _form(
    request: Request, values: Record, status: int = 200, problems: Mapping[str, str] = {}, wanted: Record | None = None
) -> Response:
    """The form with these values. problems: JSON pointer -> error there."""
    state = request.app.state
    errors: dict[str, list[str]] = {}
    for pointer, text in problems.items():
        name = pointer.removeprefix("/").partition("/")[0]  # empty: the body as a whole
        errors.setdefault(name if name in FIELDS else "more", []).append(text)
    devices = state.devices.names
    if not state.devices.is_lasting:
        devices = tuple(dict.fromkeys(matching_options(name)[-1] for name in devices))
    # A request to the API may want any GPU (`cuda`): its duplicate wants the same.
    devices = tuple(dict.fromkeys(("auto", *devices, values["device"] or "auto")))
    models = [*BUILT_IN, *state.roots.names("models")]
    names = {"models": models, "tasks": ["", *TASKS], "devices": devices, "key": uuid4().hex, "options": OPTIONS}
    return shown(request, "new", status, values=values, errors=errors, wanted=wanted, **names)


def _search(request: Request, search_id: str) -> dict[str, Any]:
    search = actions.found_search(request, search_id)
    return responses.shown(search, request.app.state.store.position(search))


@router.get("/searches/{search_id}")
def one_search(request: Request, _caller: Viewer, search_id: SearchId) -> Response:
    """A search: what it found, does and did."""
    store, search = request.app.state.store, _search(request, search_id)
    events = store.events(search_id, limit=responses.ALL_EVENTS)
    progress, result = search["progress"] or {}, search["result"] or {}
    best = result["best"]["number"] if result.get("best") else progress.get("best")
    rows = wording.trial_rows(events, best)
    by_number = {row["number"]: row for row in rows}
    return shown(
        request,
        "search",
        search=search,
        result=result,
        progress=progress,
        headline=wording.headline(search, bool(rows)),
        rows=rows,
        best=by_number.get(best),
        yours=by_number.get(0),
        timeline=wording.timeline(events),
        last=events[-1].seq if events else 0,
        files={file.name: file for file in store.artifacts(search_id)},
        is_ended=search["state"] in ENDED,
        is_answer=search["state"] == DONE and bool(best),  # not the user's settings
    )


@router.post("/searches/{search_id}/cancel")
def cancel(request: Request, caller: Submitter, search_id: SearchId, now: Field = "") -> Response:
    """End a search, after its running probe or now."""
    actions.cancel(request, caller, search_id, bool(now))
    return to(f"/searches/{search_id}")


@router.post("/searches/{search_id}/resume")
def resume(request: Request, caller: Submitter, search_id: SearchId) -> Response:
    """Queue a search again."""
    actions.resume(request, caller, search_id)
    return to(f"/searches/{search_id}")


@router.get("/compare")
def compare(
    request: Request,
    _caller: Viewer,
    search: Annotated[Sequence[SearchId], Query(max_length=MOST_COMPARED)] = (),
) -> Response:
    """Answers of several searches side by side."""
    if not search:
        raise Problem(422, "No search is marked.", "Mark some that are done in the list of searches.")
    found = [_search(request, search_id) for search_id in dict.fromkeys(search)]
    speedups = [wording.measured_speedup(each["result"] or {}) for each in found]
    top = wording.top_of(speedups)
    rows = [
        (each, each["result"] or {}, speedup, wording.plotted(speedup, top))
        for each, speedup in zip(found, speedups, strict=True)
    ]
    differs = [name for name in wording.WORK if len({each["request"].get(name) for each in found}) > 1]
    different, dashed = [name.replace("_", " ") for name in differs], wording.plotted([1.0], top)
    return shown(request, "compare", rows=rows, dashed=dashed, different=different)


@router.get("/devices")
def devices(request: Request, caller: Viewer) -> Response:
    """The devices, and the search on each."""
    rows = [
        (row, _search(request, row["search"]) if row["search"] else None) for row in server_api.devices(request, caller)
    ]
    return shown(request, "devices", rows=rows, last=request.app.state.store.last_change())


@router.get("/tokens")
def tokens(request: Request, _caller: Admin) -> Response:
    """All tokens, without their secrets."""
    return _tokens(request)


def _tokens(request: Request, status: int = 200, **values: Any) -> Response:
    values = {"made": "", "secret": "", "user": "", "error": ""} | values
    return shown(request, "tokens", status, tokens=request.app.state.accounts.tokens(), roles=[*RIGHTS], **values)


@router.post("/tokens")
def create_token(request: Request, caller: Admin, user: Field, role: Role, days: Days) -> Response:
    """A new token; its secret is in this response alone."""
    try:
        token, secret = actions.create_token(request, caller, user, role, days)
    except InvalidRequest as error:
        return _tokens(request, 422, user=user, error=str(error))
    return _tokens(request, 201, made=token.user, secret=secret)


@router.get("/tokens/{token_id}/revoke")
def ask_to_revoke(request: Request, _caller: Admin, token_id: str) -> Response:
    """Ask whether a token is to end."""
    token = next((token for token in request.app.state.accounts.tokens() if token.id == token_id), None)
    if token is None or token.revoked_at:
        raise Problem(404, "There is no such token.")
    return shown(request, "revoke", token=token)


@router.post("/tokens/{token_id}/revoke")
def revoke_token(request: Request, caller: Admin, token_id: str) -> Response:
    """End a token and its sessions."""
    actions.revoke_token(request, caller, token_id)
    return to("/tokens")
