"""Types of the API's requests and answers, and parts that its routes share."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model

from autotune.core.errors import did_you_mean
from autotune.service.access import needs
from autotune.service.accounts import USER, Caller, Token
from autotune.service.body import parse_body
from autotune.service.problems import MEDIA_TYPE, Problem
from autotune.service.records import ENDED, QUEUED, RUNNING, Search
from autotune.service.stream import MOST_EVENTS

JSON = "application/json"
ROOT = "/api/v1"
ALL_EVENTS = 100_000
"""Number of events above that of any search."""
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


_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def routes() -> APIRouter:
    """A router with a description of its errors."""
    problem = {"description": "A problem; `type` and `detail` say which", "content": _PROBLEM}
    return APIRouter(
        prefix=ROOT,
        route_class=_Route,
        responses={"default": problem},
        generate_unique_id_function=lambda route: route.name,
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
    "position": (int | None, ...),
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


def shown(search: Search, position: int | None = None) -> dict[str, Any]:
    """A search as in an answer."""
    values = {field.name: getattr(search, field.name) for field in fields(search) if field.name not in _HIDDEN}
    here = f"{ROOT}/searches/{search.id}"
    links = {"self": here} | {name: f"{here}/{name}" for name in ("events", "trials", "files")}
    return values | {"position": position, "links": links | ({"result": f"{here}/result"} if search.result else {})}


def tag_headers(tag: str) -> dict[str, str]:
    """Headers of an answer of this version."""
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}


def is_known(request: Request, tag: str) -> bool:
    """True if the caller has the answer with this tag already."""
    tags = [given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")]
    return "*" in tags or tag in tags


def is_accepted(request: Request, media_type: str) -> bool:
    """True if the caller names this type."""
    return media_type in [part.partition(";")[0].strip() for part in request.headers.get("accept", "").split(",")]
