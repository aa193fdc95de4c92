"""Types of the API's requests and answers, and parts that its routes share."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.core.errors import did_you_mean
from autotune.service.access import needs
from autotune.service.accounts import USER, Caller, Token
from autotune.service.body import parse_body
from autotune.service.problems import MEDIA_TYPE, Problem
from autotune.service.records import ENDED, QUEUED, RUNNING, Search

JSON, CSV = "application/json", "text/csv"
ROOT = "/api/v1"
_STATUS = f"{ROOT}/searches/"
MOST_EVENTS, ALL_EVENTS = 500, 100_000
"""Events in one answer; more than any search has."""
MOST_STATUSES, MOST_STATUS_BYTES = 1000, 2**15
"""Answers about searches that are kept, and the largest one."""
_HIDDEN = ("version", "interruptions", "restarts", "not_before", "pid", "pid_started")
"""Fields of a search that only the server uses."""


class _Plain(Request):
    async def json(self) -> Any:
        try:
            return parse_body(await self.body())
        except ValueError as error:
            raise Problem(400, f"The body is not valid JSON: {error}.", kind="invalid-json") from error


class _Route(APIRoute):
    """A route that takes JSON alone, as strictly as `parse_body`, and only the parameters that it has."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        parameters = [field.alias for field in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            if unknown := [name for name in request.query_params if name not in parameters]:
                message = f"There is no parameter {unknown[0]!r} here."
                errors = dict.fromkeys(unknown, "There is no such parameter.")
                advice = did_you_mean(unknown[0], parameters) if parameters else "Leave it out."
                raise Problem(422, message, advice, kind="invalid-request", errors=errors)
            given, kind = request.headers, request.headers.get("content-type", "")
            has_body = given.get("content-length", "0") != "0" or "transfer-encoding" in given
            if self.body_field and has_body and kind.partition(";")[0].strip().lower() != JSON:
                raise Problem(415, f"A body of type {JSON} is needed.", kind="unsupported-media-type")
            return await handler(_Plain(request.scope, request.receive))

        return handle


PROBLEMS = {
    "400": "The body cannot be read as JSON",
    "401": "No valid token",
    "403": "Not with this role, another user's, or from another site",
    "404": "There is none of this id or name",
    "406": "Not as a type that is accepted",
    "409": "Not in the state that it has now",
    "413": "The body is too long",
    "415": "The body is not JSON",
    "421": "The server is not known by this host name",
    "422": "Fields or parameters are wrong",
    "429": "A limit is reached: wait for the seconds of Retry-After",
    "503": "The server cannot do it now",
}
"""Status -> its description."""
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def routes() -> APIRouter:
    """A router with descriptions of its errors."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": PROBLEMS[status], "content": _PROBLEM} for status in ("401", "403", "421", "429", "503")
    }
    responses["4XX"] = {}  # else FastAPI describes its kind of problems
    return APIRouter(
        prefix=ROOT, route_class=_Route, responses=responses, generate_unique_id_function=lambda route: route.name
    )


Viewer = Annotated[Caller, needs("viewer")]
Submitter = Annotated[Caller, needs("submitter")]
Admin = Annotated[Caller, needs("admin")]
After = Annotated[int | None, Query(ge=0, lt=2**31)]
LastEvent = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, lt=2**31)]
Limit = Annotated[int, Query(ge=1, le=MOST_EVENTS)]
Text = Annotated[str | None, Query(max_length=300, pattern=r"^[^\x00]*$")]


# Answers -------------------------------------------------------------------------------------------------

_kinds: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(Search).items() if name not in _HIDDEN}
_kinds |= {
    "state": (Literal[(QUEUED, RUNNING, *ENDED)], ...),
    "place": (int | None, ...),
    "links": (dict[str, str], ...),
}
ShownSearch = create_model("Search", **_kinds)


class CheckedRequest(BaseModel):
    """Request that a dry run would have submitted."""

    model_config = ConfigDict(extra="forbid")
    request: dict[str, Any]


class ShownEvent(BaseModel):
    """An event of a search; `id` counts within the search, or over all of them in `/events`."""

    id: int
    search: str
    kind: str
    at: datetime
    body: dict[str, Any]


class Cancel(BaseModel):
    """now: without waiting for the running probe."""

    model_config = ConfigDict(extra="forbid", strict=True)
    now: bool = False


class NewToken(BaseModel):
    """days: after which it expires. most_devices: that its searches have at once. null: no limit."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    user: str = Field(json_schema_extra={"pattern": USER})  # checked by `Accounts`, in words
    role: Literal["viewer", "submitter", "admin", "metrics"]
    days: float | None = 90.0
    most_devices: int | None = None


class SecretToken(BaseModel):
    """A new token with its secret, which is shown this once."""

    token: Token
    secret: str


class Names(BaseModel):
    """Names that a request may use; hub: off, cached or online."""

    built_in: dict[str, str]
    models: list[str]
    data: list[str]
    hub: str
    hub_patterns: list[str]


class Statuses:
    """Answers about searches, kept while no search changes: only the server that has the database changes one."""

    def __init__(self) -> None:
        self.changes = 0
        self._kept: dict[str, tuple[str, bytes]] = {}

    def clear(self) -> None:
        """Forget them after a change; from any thread."""
        self.changes += 1
        self._kept = {}

    def get(self, search_id: str) -> tuple[str, bytes] | None:
        """(ETag, body)."""
        return self._kept.get(search_id)

    def keep(self, search: Search, place: int | None, changes: int) -> tuple[str, bytes]:
        """(ETag, body). changes: before the search was read."""
        kept, body = self._kept, ShownSearch.__pydantic_serializer__.to_json(ShownSearch(**shown(search, place)))
        status = (f"{search.version}.{place or 0}", body)
        if changes == self.changes and len(kept) < MOST_STATUSES and len(body) < MOST_STATUS_BYTES:
            kept[search.id] = status
        return status


def status_answer(request: Request, status: tuple[str, bytes]) -> Response:
    """The answer with this status of a search."""
    return unless_known(request, Response(status[1], media_type=JSON), status[0])


class KeptStatuses:
    """Answers a request for a kept status, by a token that was valid a moment ago, without the routes: in half the time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_plain = scope["type"] == "http" and scope["method"] == "GET" and not scope["query_string"]
        if is_plain and scope["path"].startswith(_STATUS):
            request, state = Request(scope), scope["app"].state
            scheme, _, secret = request.headers.get("authorization", "").partition(" ")
            who = state.accounts.recent(secret.strip()) if scheme.lower() == "bearer" else None
            status = state.statuses.get(scope["path"].removeprefix(_STATUS))
            if who and who.may("viewer") and status:
                request.state.caller, scope["route"] = who, SimpleNamespace(path=f"{_STATUS}{{search_id}}")
                await status_answer(request, status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def shown(search: Search, place: int | None = None) -> dict[str, Any]:
    """A search as in an answer."""
    values = {field.name: getattr(search, field.name) for field in fields(search) if field.name not in _HIDDEN}
    here = f"{ROOT}/searches/{search.id}"
    links = {"self": here} | {name: f"{here}/{name}" for name in ("events", "trials", "files")}
    return values | {"place": place, "links": links | ({"result": f"{here}/result"} if search.result else {})}


def tag_headers(tag: str) -> dict[str, str]:
    """Headers of an answer of this version."""
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}


def unless_known(request: Request, response: Response, tag: str) -> Response:
    """The response with its tag, or 304 if the caller has this version already."""
    headers = tag_headers(tag)
    tags = [given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")]
    if "*" in tags or headers["ETag"] in tags:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def accepted(request: Request, *offered: str) -> str:
    """The type of these that the caller prefers, the first of equals. Raises Problem 406."""
    likes = dict.fromkeys(offered, 0.0)
    for kind in offered:
        near = 0
        for part in request.headers.get("accept", "*/*").split(","):
            name, _, rest = part.partition(";")
            pattern = name.strip().lower()
            exact = [pattern in ("", "*/*"), pattern == f"{kind.partition('/')[0]}/*", pattern == kind]
            weight = re.search(r"q\s*=\s*([01](?:\.\d{0,3})?)", rest)
            if any(exact) and (rank := 1 + exact.index(True)) > near:
                near, likes[kind] = rank, float(weight[1]) if weight else 1.0
    best = max(offered, key=lambda kind: likes[kind])
    if not likes[best]:
        raise Problem(406, f"This is there as {' or '.join(offered)}.", kind="not-acceptable")
    return best


def as_csv(rows: Sequence[Mapping[str, Any]]) -> Response:
    """The rows as CSV, with a column for each key."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return Response(text.getvalue(), media_type=CSV)
