"""REST under /api/v1: searches, their events and files; `python -m` prints the whole schema."""

import json
import re
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from autotune.service import actions, responses, server_api
from autotune.service.accounts import Caller
from autotune.service.actions import found_search
from autotune.service.body import SearchBody
from autotune.service.problems import SCHEMA, Problem
from autotune.service.records import ENDED, QUEUED, RUNNING, Artifact, Event, Search
from autotune.service.responses import JSON, ROOT, Submitter, Viewer
from autotune.service.store import Store
from autotune.service.stream import EVERY, MOST_EVENTS, Find
from autotune.service.stream import MEDIA_TYPE as EVENTS

SANDBOXED = {
    "text/html": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts",
    "image/svg+xml": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
}
"""Type of a report's file -> its policy: scripts have no rights of this site, and the report's own policy holds too."""

TRIAL_KEYS = ("number", "configuration", "values", "outcome", "reason", "samples_per_second", "peak_bytes", "warnings")
router = responses.routes()


# Searches ---------------------------------------------------------------------------------------------------------


@router.post(
    "/searches", status_code=201, responses={200: {"description": "A dry run, or submitted before with this key"}}
)
def submit(
    request: Request,
    response: Response,
    who: Submitter,
    body: SearchBody,
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header(max_length=255, pattern=r"^[!-~]+$")] = None,
) -> responses.ShownSearch | responses.CheckedRequest:
    """Queue a search; with dry_run only check it."""
    if dry_run:
        response.status_code = 200
        return responses.CheckedRequest(request=actions.check(request, who, body))
    search, is_new = actions.submit(request, who, body, idempotency_key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{ROOT}/searches/{search.id}"
    return _response(request, response, search)


def _response(request: Request, response: Response, search: Search) -> Any:
    position = request.app.state.store.position(search)
    response.headers.update(responses.tag_headers(f"{search.version}.{position or 0}"))
    return responses.shown(search, position)


@router.get("/searches")
def searches(
    request: Request,
    response: Response,
    _who: Viewer,
    state: Literal[(QUEUED, RUNNING, *ENDED)] | None = None,  # type: ignore[valid-type]
    owner: responses.Text = None,
    model: responses.Text = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    cursor: responses.Text = None,
) -> list[responses.ShownSearch]:
    """Searches, newest first, without requests and results; the header Link names the next page."""
    page, following = request.app.state.store.list(state=state, owner=owner, model=model, limit=limit, cursor=cursor)
    if following:
        url = request.url.include_query_params(cursor=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return [responses.shown(search) for search in page]


@router.get(
    "/searches/{search_id}", response_model=responses.ShownSearch, responses={304: {"description": "Not changed"}}
)
def search(request: Request, response: Response, _who: Viewer, search_id: str) -> Any:
    """A search: its state, its position in the queue, its progress and its result."""
    shown = _response(request, response, found_search(request, search_id))
    is_known = responses.is_known(request, response.headers["ETag"])
    return Response(status_code=304, headers=response.headers) if is_known else shown


@router.post("/searches/{search_id}/cancel", status_code=202, response_model=responses.ShownSearch)
def cancel(
    request: Request, response: Response, who: Submitter, search_id: str, body: responses.Cancel | None = None
) -> Any:
    """End a search: a queued one at once, a running one after its probe, or now. What it has found is kept."""
    return _response(request, response, actions.cancel(request, who, search_id, body is not None and body.now))


@router.post("/searches/{search_id}/resume", status_code=202, response_model=responses.ShownSearch)
def resume(request: Request, response: Response, who: Submitter, search_id: str) -> Any:
    """Queue a cancelled or failed search again: it goes on where it was."""
    return _response(request, response, actions.resume(request, who, search_id))


@router.delete("/searches/{search_id}", status_code=204)
def delete(request: Request, who: Submitter, search_id: str) -> None:
    """Delete an ended search with its report and its folder."""
    actions.delete(request, who, search_id)


# Events -----------------------------------------------------------------------------------------------------------

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream, or a page as JSON", "content": {EVENTS: {"schema": {"type": "string"}}}},
    204: {"description": "The end was sent before"},
}


def _event(event: Event, number: int) -> dict[str, Any]:
    return {"id": number, "search": event.search_id, "kind": event.kind, "at": event.at, "body": event.body}


async def _events(request: Request, who: Caller, search_id: str, start: int, limit: int, find: Find) -> Any:
    if responses.is_accepted(request, JSON):
        return (await run_in_threadpool(find, start, limit))[0]
    return request.app.state.hub.stream(who.token_id, search_id, start, find)


@router.get("/searches/{search_id}/events", response_model=list[responses.ShownEvent], responses=_STREAM)
async def events(
    request: Request,
    who: Viewer,
    search_id: str,
    after: responses.After = None,
    limit: responses.Limit = MOST_EVENTS,
    last: responses.LastEvent = None,
) -> Any:
    """A search's events after the given one: a stream, or a page of them if JSON is accepted."""
    store: Store = request.app.state.store
    await run_in_threadpool(found_search, request, search_id)

    def find(after: int, limit: int) -> tuple[list[dict[str, Any]], bool]:
        search = store.read(search_id)  # before the events: an ended search has all of them
        found = [_event(event, event.seq) for event in store.events(search_id, after, limit)]
        return found, search is None or (search.state in ENDED and len(found) < limit)

    is_stream = not responses.is_accepted(request, JSON)
    if is_stream and last is not None and await run_in_threadpool(find, last, 1) == ([], True):
        return Response(status_code=204)
    return await _events(request, who, search_id, last if last is not None else after or 0, limit, find)


@router.get("/events", response_model=list[responses.ShownEvent], responses=_STREAM)
async def changes(
    request: Request,
    who: Viewer,
    after: responses.After = None,
    limit: responses.Limit = MOST_EVENTS,
    last: responses.LastEvent = None,
) -> Any:
    """Changes of all searches' states after the given one; a stream without it begins with the next change."""
    store: Store = request.app.state.store

    def find(after: int, limit: int) -> tuple[list[dict[str, Any]], bool]:
        return [_event(event, event.id) for event in store.changes(after, limit)], False

    start = last if last is not None else after
    if start is None:
        start = 0 if responses.is_accepted(request, JSON) else await run_in_threadpool(store.last_change)
    return await _events(request, who, EVERY, start, limit, find)


# Reports ----------------------------------------------------------------------------------------------------------


@router.get("/searches/{search_id}/trials")
def trials(request: Request, _who: Viewer, search_id: str) -> list[dict[str, Any]]:
    """A search's trials as far as it is."""
    store: Store = request.app.state.store
    rows: dict[int, dict[str, Any]] = {}
    for event in store.events(found_search(request, search_id).id, limit=responses.ALL_EVENTS):
        if event.kind in ("trial", "confirmed"):
            rows[event.body["number"]] = {name: event.body.get(name) for name in TRIAL_KEYS}
    return list(rows.values())


@router.get("/searches/{search_id}/result")
def result(request: Request, _who: Viewer, search_id: str) -> dict[str, Any]:
    """The result of a search, as `autotune search --json` prints it."""
    search = found_search(request, search_id)
    if search.result is None:
        raise Problem(404, f"The search is {search.state} and has no result.")
    return search.result


@router.get("/searches/{search_id}/files")
def files(request: Request, _who: Viewer, search_id: str) -> list[Artifact]:
    """The files of an ended search's report."""
    found: list[Artifact] = request.app.state.store.artifacts(found_search(request, search_id).id)
    return found


@router.get("/searches/{search_id}/files/{name}", responses={200: {"content": {"*/*": {}}}}, response_class=Response)
def report_file(request: Request, _who: Viewer, search_id: str, name: str) -> Response:
    """A file of an ended search's report, in which no script has rights of this site; a failed trial's log is one too."""
    search = found_search(request, search_id)
    file = request.app.state.store.artifact(search.id, name) if re.fullmatch(r"[\w.-]{1,100}", name) else None
    if file is None:
        raise Problem(404, "There is no such file.")
    artifact, content = file
    tag = responses.tag_headers(artifact.sha256)
    if responses.is_known(request, tag["ETag"]):
        return Response(status_code=304, headers=tag)
    is_shown = artifact.media_type in SANDBOXED or artifact.media_type in ("text/plain", JSON)
    headers = {"Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{artifact.name}"'}
    if artifact.media_type in SANDBOXED:
        headers["Content-Security-Policy"] = SANDBOXED[artifact.media_type]
    return Response(content, media_type=artifact.media_type, headers=headers | tag)


router.routes.extend(server_api.router.routes)


def document() -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    app = FastAPI(
        title="autotune",
        version="1",
        description="Searches for the fastest training configuration, as a service.",
        servers=[{"url": "/", "description": "The server that sends this description"}],
    )
    app.include_router(router)
    schema = app.openapi()
    schema["components"]["schemas"]["Problem"] = SCHEMA
    for path, item in schema["paths"].items():
        for operation in item.values():
            operation["tags"] = [path.removeprefix(f"{ROOT}/").partition("/")[0]]
    return schema


@router.get("/openapi.json", include_in_schema=False)
def openapi(_who: Viewer) -> dict[str, Any]:
    """This API's description."""
    return document()


if __name__ == "__main__":
    print(json.dumps(document(), indent=1, sort_keys=True))
