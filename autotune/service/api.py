"""REST under /api/v1: searches, their events and files, comparisons, and what this server has; `python -m` prints its schema."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from autotune.service import answers
from autotune.service.access import address_of, needs
from autotune.service.accounts import Caller, Token
from autotune.service.body import JSON, JsonRoute, SearchBody, checked
from autotune.service.problems import MEDIA_TYPE, SCHEMA, Problem
from autotune.service.store import ENDED, QUEUED, RUNNING, Artifact, Event, Search, Store
from autotune.service.stream import EVERY, Hub, Item
from autotune.service.stream import MEDIA_TYPE as EVENTS
from autotune.space.file import describe_space, named_spaces
from autotune.workload.model.builtin import BUILT_IN

_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
router = APIRouter(
    prefix=answers.ROOT,
    route_class=JsonRoute,
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
Limit = Annotated[int, Query(ge=1, le=answers.MOST_EVENTS)]
Text = Annotated[str | None, Query(max_length=300, pattern=r"^[^\x00]*$")]


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
) -> answers.ShownSearch | answers.CheckedRequest:
    """Queue a search; with dry_run only check it."""
    state = request.app.state
    wanted = checked(body, state.roots, who, state.devices.names)
    if dry_run:
        response.status_code = 200
        return answers.CheckedRequest(request=wanted)
    name = body.name or f"{body.model} {body.global_batch_size}"
    search, is_new = state.store.submit(who.user, name, wanted, priority=body.priority, idempotency_key=idempotency_key)
    if is_new:
        _note(request, who, "submit", search.id)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{answers.ROOT}/searches/{search.id}"
    return _answer(request, response, search)


def _answer(request: Request, response: Response, search: Search) -> Any:
    place = request.app.state.store.place(search)
    is_known = answers.fresh(request, response, f"{search.version}.{place or 0}") and request.method == "GET"
    return Response(status_code=304, headers=dict(response.headers)) if is_known else answers.shown(search, place)


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
) -> list[answers.ShownSearch]:
    """Searches, newest first, without requests and results; the header Link names the next page."""
    page, following = request.app.state.store.list(state=state, owner=owner, model=model, limit=limit, cursor=cursor)
    if following:
        url = request.url.include_query_params(cursor=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return [answers.shown(search) for search in page]


@router.get("/searches/{search_id}", response_model=answers.ShownSearch, responses={304: {"description": "As it was"}})
def search(request: Request, response: Response, _who: Viewer, search_id: str) -> Any:
    """A search: its state, its place in the queue, its progress and its result."""
    return _answer(request, response, _found(request, search_id))


@router.post("/searches/{search_id}/cancel", status_code=202, response_model=answers.ShownSearch)
def cancel(
    request: Request, response: Response, who: Submitter, search_id: str, body: answers.Cancel | None = None
) -> Any:
    """End a search: a queued one at once, a running one after its probe, or now. What it has found is kept."""
    wish = body is not None and body.now
    search = request.app.state.store.cancel(_owned(request, search_id, who).id, wish)
    _note(request, who, "cancel", search.id)
    return _answer(request, response, search)


@router.post("/searches/{search_id}/resume", status_code=202, response_model=answers.ShownSearch)
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


@router.get("/searches/{search_id}/events", response_model=list[answers.ShownEvent], responses=_STREAM)
async def events(
    request: Request,
    who: Viewer,
    search_id: str,
    after: After = None,
    limit: Limit = answers.MOST_EVENTS,
    last: LastEvent = None,
) -> Any:
    """A search's events after the given one: a stream, or a page of them where JSON is accepted."""
    store: Store = request.app.state.store
    await run_in_threadpool(_found, request, search_id)
    start = last if last is not None else after or 0
    if answers.accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.seq) for event in await run_in_threadpool(store.events, search_id, start, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        search = store.read(search_id)  # before the events: of an ended search they are all there
        found = store.events(search_id, after, answers.MOST_EVENTS)
        is_last = search is None or (search.state in ENDED and len(found) < answers.MOST_EVENTS)
        return [(event.seq, event.kind, event.body) for event in found], is_last

    if last is not None and await run_in_threadpool(read, last) == ([], True):
        return Response(status_code=204)
    hub: Hub = request.app.state.hub
    return hub.stream(who.token_id, search_id, start, read)


@router.get("/events", response_model=list[answers.ShownEvent], responses=_STREAM)
async def changes(
    request: Request, who: Viewer, after: After = None, limit: Limit = answers.MOST_EVENTS, last: LastEvent = None
) -> Any:
    """Changes of all searches' states after the given one; a stream without it begins with the next change."""
    store: Store = request.app.state.store
    start = last if last is not None else after
    if answers.accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.id) for event in await run_in_threadpool(store.changes, start or 0, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        found = store.changes(after, answers.MOST_EVENTS)
        return [(event.id, event.kind, {"search": event.search_id, **event.body}) for event in found], False

    start = await run_in_threadpool(store.last_change) if start is None else start
    hub: Hub = request.app.state.hub
    return hub.stream(who.token_id, EVERY, start, read)


# Reports ----------------------------------------------------------------------------------------------------------


@router.get("/searches/{search_id}/trials", responses={200: {"content": {answers.CSV: {"schema": {"type": "string"}}}}})
def trials(request: Request, _who: Viewer, search_id: str) -> list[dict[str, Any]]:
    """A search's trials as far as it is, as JSON or CSV; of an ended one the CSV of its report."""
    store, search = request.app.state.store, _found(request, search_id)
    kind = answers.accepted(request, JSON, answers.CSV)
    if kind == answers.CSV and (file := store.artifact(search.id, "trials.csv")):
        return answers.served(file, request)  # type: ignore[return-value]
    rows = answers.trial_rows(store, search.id)
    return rows if kind == JSON else answers.as_csv([answers.flat(row) for row in rows])  # type: ignore[return-value]


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
    return answers.served(file, request)


# Comparisons ------------------------------------------------------------------------------------------------------

_alone = CapacityLimiter(1)
"""Comparisons at once: they need pandas, a process each, and a core that a search may be measuring on."""


@router.get("/comparisons", responses={200: {"content": {answers.CSV: {"schema": {"type": "string"}}}}})
async def comparisons(
    request: Request, _who: Viewer, search: Annotated[list[str], Query(min_length=2, max_length=answers.MOST_COMPARED)]
) -> list[dict[str, Any]]:
    """Ended searches side by side: a row each, as `autotune compare` has them."""
    kind = answers.accepted(request, JSON, answers.CSV)
    found = [await run_in_threadpool(_found, request, search_id) for search_id in dict.fromkeys(search)]
    rows = await to_thread.run_sync(answers.compared, request.app.state.store, found, limiter=_alone)
    return rows if kind == JSON else answers.as_csv(rows)  # type: ignore[return-value]


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
def models(request: Request, _who: Viewer) -> answers.Names:
    """Models and data that a request may name."""
    roots = request.app.state.roots
    built_in = {name: model.description for name, model in BUILT_IN.items()}
    below = {kind: roots.names(kind) for kind in ("models", "data")}
    return answers.Names(built_in=built_in, hub=roots.hub, hub_patterns=list(roots.hub_patterns), **below)


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
def create_token(request: Request, who: Admin, body: answers.NewToken) -> answers.SecretToken:
    """A new token; its secret is in this answer alone."""
    token, secret = request.app.state.accounts.create(body.user, body.role, body.days, who.user)
    _note(request, who, f"create token {token.id}")
    return answers.SecretToken(token=token, secret=secret)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(request: Request, who: Admin, token_id: str) -> None:
    """End a token and its sessions."""
    if not re.fullmatch("[0-9a-f]{8}", token_id) or not request.app.state.accounts.revoke(token_id):
        raise Problem(404, "There is no such token.", kind="not-found")
    _note(request, who, f"revoke token {token_id}")


def document() -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    app = FastAPI(title="autotune", version="1", description="Searches for the fastest training configuration.")
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
