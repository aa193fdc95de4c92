"""REST under /api/v1: searches, their events and files, comparisons, and what this server has; `python -m` prints its schema."""

import csv
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, create_model

from autotune.service.access import address_of, needs
from autotune.service.accounts import Caller, Token
from autotune.service.body import SearchBody, checked, parse_body
from autotune.service.problems import MEDIA_TYPE, SCHEMA, Problem
from autotune.service.store import ENDED, QUEUED, RUNNING, Artifact, Event, Search, Store
from autotune.service.stream import EVERY, Hub, Item
from autotune.service.stream import MEDIA_TYPE as EVENTS
from autotune.space.file import describe_space, named_spaces
from autotune.workload.model.builtin import BUILT_IN

JSON, CSV = "application/json", "text/csv"
ROOT = "/api/v1"
MOST_EVENTS = 500
"""In one answer."""
COMPARED_S = 120.0
"""Deadline of a comparison."""
MOST_COMPARED = 8

SANDBOXED = {
    "text/html": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts",
    "image/svg+xml": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
}
"""Type of a report's file -> its policy: scripts have no rights of this site, and the report's own policy holds too."""

OF_A_TRIAL = ("number", "configuration", "values", "outcome", "reason", "samples_per_second", "peak_bytes", "warnings")
_HIDDEN = ("version", "interruptions", "not_before", "pid", "pid_started")
"""Of a search, what is the server's own."""


class _Plain(Request):
    async def json(self) -> Any:
        try:
            return parse_body(await self.body())
        except ValueError as error:
            raise Problem(400, f"The body is no JSON that can be read: {error}.", kind="invalid-json") from error


class _Route(APIRoute):
    """A route that takes JSON alone, as strictly as `parse_body`."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            given, kind = request.headers, request.headers.get("content-type", "")
            has_body = given.get("content-length", "0") != "0" or "transfer-encoding" in given
            if self.body_field and has_body and kind.partition(";")[0].strip().lower() != JSON:
                raise Problem(415, f"A body of type {JSON} is needed.", kind="unsupported-media-type")
            return await handler(_Plain(request.scope, request.receive))

        return handle


_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
router = APIRouter(
    prefix=ROOT,
    route_class=_Route,
    responses={
        "4XX": {"description": "The request cannot be done as it is", "content": _PROBLEM},
        "503": {"description": "The server cannot do it now", "content": _PROBLEM},
    },
)

Viewer = Annotated[Caller, Depends(needs("viewer"))]
Submitter = Annotated[Caller, Depends(needs("submitter"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
After = Annotated[int | None, Query(ge=0, lt=2**31)]
LastEvent = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, lt=2**31)]
Limit = Annotated[int, Query(ge=1, le=MOST_EVENTS)]
Text = Annotated[str | None, Query(max_length=300, pattern=r"^[^\x00]*$")]


# What is answered -------------------------------------------------------------------------------------------------

_kinds: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(Search).items() if name not in _HIDDEN}
_kinds |= {
    "state": (Literal[(QUEUED, RUNNING, *ENDED)], ...),
    "place": (int | None, ...),
    "links": (dict[str, str], ...),
}  # type: ignore[valid-type]
ShownSearch = create_model("Search", **_kinds)


class CheckedRequest(BaseModel):
    """What a dry run would have submitted."""

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
    """days: after which it expires; null: never."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    user: str
    role: Literal["viewer", "submitter", "admin", "metrics"]
    days: float | None = 90.0


class SecretToken(BaseModel):
    """A new token with its secret, which is shown this once."""

    token: Token
    secret: str


class Names(BaseModel):
    """What a request may name; hub: off, cached or online."""

    built_in: dict[str, str]
    models: list[str]
    data: list[str]
    hub: str
    hub_patterns: list[str]


def shown(search: Search, place: int | None = None) -> dict[str, Any]:
    """A search as it is answered."""
    values = {field.name: getattr(search, field.name) for field in fields(search) if field.name not in _HIDDEN}
    here = f"{ROOT}/searches/{search.id}"
    links = {"self": here} | {name: f"{here}/{name}" for name in ("events", "trials", "files")}
    return values | {"place": place, "links": links | ({"result": f"{here}/result"} if search.result else {})}


def _fresh(request: Request, response: Response, tag: str) -> bool:
    """Whether the caller has this version already; else its tag is sent."""
    response.headers["ETag"] = f'"{tag}"'
    response.headers["Cache-Control"] = "private, no-cache"
    tags = (given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(","))
    return any(given in ("*", f'"{tag}"') for given in tags)


def _accepted(request: Request, *offered: str) -> str:
    """The type of these that the caller likes best, the first of equals. Raises Problem 406."""
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


def _csv(rows: Sequence[Mapping[str, Any]]) -> Response:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return Response(text.getvalue(), media_type=CSV)


def _found(request: Request, search_id: str) -> Search:
    store: Store = request.app.state.store
    search = store.read(search_id) if re.fullmatch("[0-9a-f]{32}", search_id) else None
    if search is None:
        raise Problem(404, "There is no such search.", "GET /api/v1/searches lists them.", kind="not-found")
    return search


def _owned(request: Request, search_id: str, who: Caller) -> Search:
    search = _found(request, search_id)
    if search.owner != who.user and not who.may("admin"):
        raise Problem(403, f"The search is {search.owner}'s.", "Its owner and admins can do this.")
    return search


def _note(request: Request, who: Caller, action: str, search_id: str | None = None) -> None:
    request.app.state.accounts.record(who, action, "done", search_id, address_of(request))


# Searches ---------------------------------------------------------------------------------------------------------


@router.post(
    "/searches", status_code=201, responses={200: {"description": "Of a dry run, or sent before with this key"}}
)
def submit(
    request: Request,
    response: Response,
    who: Submitter,
    body: SearchBody,
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header(max_length=255, pattern=r"^[!-~]+$")] = None,
) -> ShownSearch | CheckedRequest:  # type: ignore[valid-type]
    """Queue a search; with dry_run only check it."""
    state = request.app.state
    wanted = checked(body, state.roots, who, state.devices.names)
    if dry_run:
        response.status_code = 200
        return CheckedRequest(request=wanted)
    name = body.name or f"{body.model} {body.global_batch_size}"
    search, is_new = state.store.submit(who.user, name, wanted, priority=body.priority, idempotency_key=idempotency_key)
    if is_new:
        _note(request, who, "submit", search.id)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{ROOT}/searches/{search.id}"
    return _answer(request, response, search)


def _answer(request: Request, response: Response, search: Search) -> Any:
    place = request.app.state.store.place(search)
    is_known = _fresh(request, response, f"{search.version}.{place or 0}") and request.method == "GET"
    return Response(status_code=304, headers=dict(response.headers)) if is_known else shown(search, place)


@router.get("/searches")
def searches(
    request: Request,
    response: Response,
    _who: Viewer,
    state: Literal[(QUEUED, RUNNING, *ENDED)] | None = None,  # type: ignore[valid-type]
    owner: Text = None,
    model: Text = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    cursor: Text = None,
) -> list[ShownSearch]:  # type: ignore[valid-type]
    """Searches, newest first, without requests and results; the header Link names the next page."""
    page, following = request.app.state.store.list(state=state, owner=owner, model=model, limit=limit, cursor=cursor)
    if following:
        url = request.url.include_query_params(cursor=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return [shown(search) for search in page]


@router.get("/searches/{search_id}", response_model=ShownSearch, responses={304: {"description": "As it was"}})
def search(request: Request, response: Response, _who: Viewer, search_id: str) -> Any:
    """A search: its state, its place in the queue, its progress and its result."""
    return _answer(request, response, _found(request, search_id))


@router.post("/searches/{search_id}/cancel", status_code=202, response_model=ShownSearch)
def cancel(request: Request, response: Response, who: Submitter, search_id: str, body: Cancel | None = None) -> Any:
    """End a search: a queued one at once, a running one after its probe, or now. What it has found is kept."""
    search = _owned(request, search_id, who)
    search = request.app.state.store.cancel(search.id, body is not None and body.now)
    _note(request, who, "cancel", search.id)
    return _answer(request, response, search)


@router.post("/searches/{search_id}/resume", status_code=202, response_model=ShownSearch)
def resume(request: Request, response: Response, who: Submitter, search_id: str) -> Any:
    """Queue a cancelled or failed search again: it goes on where it was."""
    search = request.app.state.store.resume(_owned(request, search_id, who).id)
    _note(request, who, "resume", search.id)
    return _answer(request, response, search)


@router.delete("/searches/{search_id}", status_code=204)
def delete(request: Request, who: Submitter, search_id: str) -> None:
    """Delete an ended search with its report."""
    search = _owned(request, search_id, who)
    request.app.state.store.delete(search.id)
    _note(request, who, "delete", search.id)


# Events -----------------------------------------------------------------------------------------------------------

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream, or a page as JSON", "content": {EVENTS: {"schema": {"type": "string"}}}},
    204: {"description": "The end was sent before"},
}


def _event(event: Event, number: int) -> dict[str, Any]:
    return {"id": number, "search": event.search_id, "kind": event.kind, "at": event.at, "body": event.body}


@router.get("/searches/{search_id}/events", response_model=list[ShownEvent], responses=_STREAM)
async def events(
    request: Request,
    who: Viewer,
    search_id: str,
    after: After = None,
    limit: Limit = MOST_EVENTS,
    last: LastEvent = None,
) -> Any:
    """A search's events after the given one: a stream, or a page of them where JSON is accepted."""
    store: Store = request.app.state.store
    await run_in_threadpool(_found, request, search_id)
    start = last if last is not None else after or 0
    if _accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.seq) for event in await run_in_threadpool(store.events, search_id, start, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        search = store.read(search_id)  # before the events: of an ended search they are all there
        found = store.events(search_id, after, MOST_EVENTS)
        is_last = search is None or (search.state in ENDED and len(found) < MOST_EVENTS)
        return [(event.seq, event.kind, event.body) for event in found], is_last

    if last is not None and await run_in_threadpool(read, last) == ([], True):
        return Response(status_code=204)
    hub: Hub = request.app.state.hub
    return hub.stream(who.token_id, search_id, start, read)


@router.get("/events", response_model=list[ShownEvent], responses=_STREAM)
async def changes(
    request: Request, who: Viewer, after: After = None, limit: Limit = MOST_EVENTS, last: LastEvent = None
) -> Any:
    """Changes of all searches' states after the given one; a stream without it begins with the next change."""
    store: Store = request.app.state.store
    start = last if last is not None else after
    if _accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.id) for event in await run_in_threadpool(store.changes, start or 0, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        found = store.changes(after, MOST_EVENTS)
        return [(event.id, event.kind, {"search": event.search_id, **event.body}) for event in found], False

    start = await run_in_threadpool(store.last_change) if start is None else start
    hub: Hub = request.app.state.hub
    return hub.stream(who.token_id, EVERY, start, read)


# Reports ----------------------------------------------------------------------------------------------------------


@router.get("/searches/{search_id}/trials", responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}})
def trials(request: Request, _who: Viewer, search_id: str) -> list[dict[str, Any]]:
    """A search's trials as far as it is, as JSON or CSV; of an ended one the CSV of its report."""
    store, search = request.app.state.store, _found(request, search_id)
    kind = _accepted(request, JSON, CSV)
    if kind == CSV and (file := store.artifact(search.id, "trials.csv")):
        return served(file, request)  # type: ignore[return-value]
    rows: dict[int, dict[str, Any]] = {}
    after, found = 0, [None]
    while found:
        found = store.events(search.id, after, MOST_EVENTS)
        for event in found:
            after = event.seq
            if event.kind in ("trial", "confirmed"):
                rows[event.body["number"]] = {name: event.body.get(name) for name in OF_A_TRIAL}
    return list(rows.values()) if kind == JSON else _csv([_flat(row) for row in rows.values()])  # type: ignore[return-value]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    speed = dict(zip(("samples_per_second", "low", "high"), row["samples_per_second"] or [], strict=False))
    flat = {name: value for name, value in row.items() if name not in ("values", "samples_per_second", "warnings")}
    return flat | speed | {"warnings": "; ".join(row["warnings"] or [])} | (row["values"] or {})


@router.get("/searches/{search_id}/result")
def result(request: Request, _who: Viewer, search_id: str) -> dict[str, Any]:
    """The answer of a search, as `autotune search --json` prints it."""
    search = _found(request, search_id)
    if search.result is None:
        raise Problem(404, f"The search is {search.state} and has no result.", kind="not-found")
    return search.result


@router.get(
    "/searches/{search_id}/trials/{number}/log",
    responses={200: {"content": {"text/plain": {}}}},
    response_class=Response,
)
def trial_log(request: Request, _who: Viewer, search_id: str, number: int) -> Response:
    """What a failed trial printed, once the search has ended."""
    return _file(request, search_id, f"trial-{number}.log")


@router.get("/searches/{search_id}/files")
def files(request: Request, _who: Viewer, search_id: str) -> list[Artifact]:
    """The files of an ended search's report."""
    found: list[Artifact] = request.app.state.store.artifacts(_found(request, search_id).id)
    return found


@router.get("/searches/{search_id}/files/{name}", responses={200: {"content": {"*/*": {}}}}, response_class=Response)
def report_file(request: Request, _who: Viewer, search_id: str, name: str) -> Response:
    """A file of an ended search's report."""
    return _file(request, search_id, name)


def _file(request: Request, search_id: str, name: str) -> Response:
    search = _found(request, search_id)
    file = request.app.state.store.artifact(search.id, name) if re.fullmatch(r"[\w.-]{1,100}", name) else None
    if file is None:
        raise Problem(404, "There is no such file.", kind="not-found")
    return served(file, request)


def served(file: tuple[Artifact, bytes], request: Request) -> Response:
    """A file of a report as an answer, in which no script has rights of this site."""
    artifact, content = file
    is_shown = artifact.media_type in SANDBOXED or artifact.media_type in ("text/plain", JSON)
    headers = {"Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{artifact.name}"'}
    if artifact.media_type in SANDBOXED:
        headers["Content-Security-Policy"] = SANDBOXED[artifact.media_type]
    response = Response(content, media_type=artifact.media_type, headers=headers)
    return (
        Response(status_code=304, headers={"ETag": response.headers["ETag"]})
        if _fresh(request, response, artifact.sha256)
        else response
    )


# Comparisons ------------------------------------------------------------------------------------------------------

_alone = CapacityLimiter(1)
"""Comparisons at once: they need pandas, a process each, and a core that a search may be measuring on."""


@router.get("/comparisons", responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}})
async def comparisons(
    request: Request, _who: Viewer, search: Annotated[list[str], Query(min_length=2, max_length=MOST_COMPARED)]
) -> list[dict[str, Any]]:
    """Ended searches side by side: a row each, as `autotune compare` has them."""
    kind = _accepted(request, JSON, CSV)
    found = [await run_in_threadpool(_found, request, search_id) for search_id in dict.fromkeys(search)]
    rows = await to_thread.run_sync(compared, request.app.state.store, found, limiter=_alone)
    return rows if kind == JSON else _csv(rows)  # type: ignore[return-value]


def compared(store: Store, searches: Iterable[Search]) -> list[dict[str, Any]]:
    """Rows of `autotune compare`, which call a study by its search's id. Raises Problem 409 where it cannot be compared."""
    with tempfile.TemporaryDirectory() as place:
        folders = []
        for search in searches:
            if (file := store.artifact(search.id, "study.tar.gz")) is None:
                raise Problem(
                    409, f"The search {search.id} has no study to compare.", "Compare searches that are done."
                )
            with tarfile.open(fileobj=io.BytesIO(file[1])) as archive:
                archive.extractall(Path(place) / search.id, filter="data")
            folders.append(str(Path(place) / search.id))
        command = ("nice", "-n", "19", sys.executable, "-m", "autotune", "compare", *folders, "--json")
        answer = json.loads(subprocess.run(command, capture_output=True, timeout=COMPARED_S).stdout)
    if "error" in answer:
        raise Problem(409, answer["error"]["message"].replace(f"{place}/", ""), answer["error"]["advice"])
    rows: list[dict[str, Any]] = answer["studies"]
    return rows


# The server -------------------------------------------------------------------------------------------------------


@router.get("/devices")
def devices(request: Request, _who: Viewer) -> list[dict[str, str | None]]:
    """Devices that this server lends, and the search on each."""
    state = request.app.state
    lent = {search.lent: search.id for search in state.store.running()}
    return [asdict(device) | {"search": lent.get(device.name)} for device in state.devices.devices]


@router.get("/spaces")
def spaces(_who: Viewer) -> list[dict[str, str]]:
    """Search spaces that a request may name."""
    return [{"name": name, "description": describe_space(path)} for name, path in named_spaces().items()]


@router.get("/models")
def models(request: Request, _who: Viewer) -> Names:
    """Models and data that a request may name."""
    roots = request.app.state.roots
    built_in = {name: model.description for name, model in BUILT_IN.items()}
    below = {kind: roots.names(kind) for kind in ("models", "data")}
    return Names(built_in=built_in, hub=roots.hub, hub_patterns=list(roots.hub_patterns), **below)


@router.get("/me")
def me(who: Viewer) -> Caller:
    """Whose token this is."""
    return who


@router.get("/tokens")
def tokens(request: Request, _who: Admin) -> list[Token]:
    """All tokens, without their secrets."""
    found: list[Token] = request.app.state.accounts.tokens()
    return found


@router.post("/tokens", status_code=201)
def create_token(request: Request, who: Admin, body: NewToken) -> SecretToken:
    """A new token; its secret is in this answer alone."""
    token, secret = request.app.state.accounts.create(body.user, body.role, body.days, who.user)
    _note(request, who, f"create token {token.id}")
    return SecretToken(token=token, secret=secret)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(request: Request, who: Admin, token_id: str) -> None:
    """End a token and its sessions."""
    if not re.fullmatch("[0-9a-f]{8}", token_id) or not request.app.state.accounts.revoke(token_id):
        raise Problem(404, "There is no such token.", kind="not-found")
    _note(request, who, f"revoke token {token_id}")


def document() -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    app = FastAPI(
        title="autotune", version="1", description="Searches for the fastest training configuration, as a service."
    )
    app.include_router(router)
    schema = app.openapi()
    schema["components"]["schemas"]["Problem"] = SCHEMA
    return schema


@router.get("/openapi.json", include_in_schema=False)
def openapi(_who: Viewer) -> dict[str, Any]:
    """This API's description."""
    return document()


if __name__ == "__main__":
    print(json.dumps(document(), indent=1, sort_keys=True))
