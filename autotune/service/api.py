"""REST under /api/v1: searches, their events and files, comparisons; `python -m` prints the whole schema."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from autotune.service import actions, answers, server_api
from autotune.service.actions import found_search
from autotune.service.answers import CSV, JSON, MOST_EVENTS, ROOT, Submitter, Viewer
from autotune.service.body import SearchBody
from autotune.service.client import unpack
from autotune.service.problems import SCHEMA, Problem
from autotune.service.records import ENDED, QUEUED, RUNNING, Artifact, Event, Search
from autotune.service.store import Store
from autotune.service.stream import EVERY, Item
from autotune.service.stream import MEDIA_TYPE as EVENTS

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
router = answers.routes()


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
    if dry_run:
        response.status_code = 200
        return answers.CheckedRequest(request=actions.check(request, who, body))
    search, is_new = actions.submit(request, who, body, idempotency_key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{ROOT}/searches/{search.id}"
    return _answer(request, response, search)


def _answer(request: Request, response: Response, search: Search) -> Any:
    place = request.app.state.store.place(search)
    response.headers.update(answers.tag_headers(f"{search.version}.{place or 0}"))
    return answers.shown(search, place)


@router.get("/searches")
def searches(
    request: Request,
    response: Response,
    _who: Viewer,
    state: Literal[(QUEUED, RUNNING, *ENDED)] | None = None,  # type: ignore[valid-type]
    owner: answers.Text = None,
    model: answers.Text = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    cursor: answers.Text = None,
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
    answer = _answer(request, response, found_search(request, search_id))
    is_known = answers.is_known(request, response.headers["ETag"])
    return Response(status_code=304, headers=response.headers) if is_known else answer


@router.post("/searches/{search_id}/cancel", status_code=202, response_model=answers.ShownSearch)
def cancel(
    request: Request, response: Response, who: Submitter, search_id: str, body: answers.Cancel | None = None
) -> Any:
    """End a search: a queued one at once, a running one after its probe, or now. What it has found is kept."""
    return _answer(request, response, actions.cancel(request, who, search_id, body is not None and body.now))


@router.post("/searches/{search_id}/resume", status_code=202, response_model=answers.ShownSearch)
def resume(request: Request, response: Response, who: Submitter, search_id: str) -> Any:
    """Queue a cancelled or failed search again: it goes on where it was."""
    return _answer(request, response, actions.resume(request, who, search_id))


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


@router.get("/searches/{search_id}/events", response_model=list[answers.ShownEvent], responses=_STREAM)
async def events(
    request: Request,
    who: Viewer,
    search_id: str,
    after: answers.After = None,
    limit: answers.Limit = MOST_EVENTS,
    last: answers.LastEvent = None,
) -> Any:
    """A search's events after the given one: a stream, or a page of them if JSON is accepted."""
    store: Store = request.app.state.store
    await run_in_threadpool(found_search, request, search_id)
    start = last if last is not None else after or 0
    if answers.accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.seq) for event in await run_in_threadpool(store.events, search_id, start, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        search = store.read(search_id)  # before the events: an ended search has all of them
        found = store.events(search_id, after, MOST_EVENTS)
        is_last = search is None or (search.state in ENDED and len(found) < MOST_EVENTS)
        return [(event.seq, event.kind, event.body) for event in found], is_last

    if last is not None and await run_in_threadpool(read, last) == ([], True):
        return Response(status_code=204)
    return request.app.state.hub.stream(who.token_id, search_id, start, read, request.app.state.accounts.is_valid)


@router.get("/events", response_model=list[answers.ShownEvent], responses=_STREAM)
async def changes(
    request: Request,
    who: Viewer,
    after: answers.After = None,
    limit: answers.Limit = MOST_EVENTS,
    last: answers.LastEvent = None,
) -> Any:
    """Changes of all searches' states after the given one; a stream without it begins with the next change."""
    store: Store = request.app.state.store
    start = last if last is not None else after
    if answers.accepted(request, EVENTS, JSON) == JSON:
        return [_event(event, event.id) for event in await run_in_threadpool(store.changes, start or 0, limit)]

    def read(after: int) -> tuple[Sequence[Item], bool]:
        found = store.changes(after, MOST_EVENTS)
        return [(event.id, event.kind, {"search": event.search_id, **event.body}) for event in found], False

    start = await run_in_threadpool(store.last_change) if start is None else start
    return request.app.state.hub.stream(who.token_id, EVERY, start, read, request.app.state.accounts.is_valid)


# Reports ----------------------------------------------------------------------------------------------------------


@router.get("/searches/{search_id}/trials", responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}})
def trials(request: Request, _who: Viewer, search_id: str) -> list[dict[str, Any]]:
    """A search's trials as far as it is, as JSON or CSV; of an ended one the CSV of its report."""
    store, search = request.app.state.store, found_search(request, search_id)
    kind = answers.accepted(request, JSON, CSV)
    if kind == CSV and search.state in ENDED and (file := store.artifact(search.id, "trials.csv")):
        return served(file, request)  # type: ignore[return-value]
    rows: dict[int, dict[str, Any]] = {}
    for event in store.events(search.id, limit=answers.ALL_EVENTS):
        if event.kind in ("trial", "confirmed"):
            rows[event.body["number"]] = {name: event.body.get(name) for name in OF_A_TRIAL}
    if kind == CSV:
        return answers.as_csv([_flat(row) for row in rows.values()])  # type: ignore[return-value]
    return list(rows.values())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    names = [f"samples_per_second{end}" for end in ("", "_low", "_high")]
    speed = dict(zip(names, row["samples_per_second"] or [], strict=False))
    flat = {name: value for name, value in row.items() if name not in ("values", "samples_per_second", "warnings")}
    return flat | speed | {"warnings": "; ".join(row["warnings"] or [])} | (row["values"] or {})


@router.get("/searches/{search_id}/result")
def result(request: Request, _who: Viewer, search_id: str) -> dict[str, Any]:
    """The answer of a search, as `autotune search --json` prints it."""
    search = found_search(request, search_id)
    if search.result is None:
        raise Problem(404, f"The search is {search.state} and has no result.", kind="not-found")
    return search.result


@router.get(
    "/searches/{search_id}/trials/{number}/log",
    responses={200: {"content": {"text/plain": {}}}},
    response_class=Response,
)
def trial_log(request: Request, _who: Viewer, search_id: str, number: int) -> Response:
    """Output of a failed trial, once the search has ended."""
    return _file(request, search_id, f"trial-{number}.log")


@router.get("/searches/{search_id}/files")
def files(request: Request, _who: Viewer, search_id: str) -> list[Artifact]:
    """The files of an ended search's report."""
    found: list[Artifact] = request.app.state.store.artifacts(found_search(request, search_id).id)
    return found


@router.get("/searches/{search_id}/files/{name}", responses={200: {"content": {"*/*": {}}}}, response_class=Response)
def report_file(request: Request, _who: Viewer, search_id: str, name: str) -> Response:
    """A file of an ended search's report."""
    return _file(request, search_id, name)


def _file(request: Request, search_id: str, name: str) -> Response:
    search = found_search(request, search_id)
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
    tag = answers.tag_headers(artifact.sha256)
    if answers.is_known(request, tag["ETag"]):
        return Response(status_code=304, headers=tag)
    return Response(content, media_type=artifact.media_type, headers=headers | tag)


# Comparisons ------------------------------------------------------------------------------------------------------

_alone = CapacityLimiter(1)
"""Simultaneous comparisons: they need pandas, a process each, and a core that a search may be measuring on."""


@router.get("/comparisons", responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}})
async def comparisons(
    request: Request, _who: Viewer, search: Annotated[list[str], Query(min_length=2, max_length=MOST_COMPARED)]
) -> list[dict[str, Any]]:
    """Ended searches side by side: a row each, as `autotune compare` has them."""
    kind = answers.accepted(request, JSON, CSV)
    found = [await run_in_threadpool(found_search, request, search_id) for search_id in dict.fromkeys(search)]
    rows = await to_thread.run_sync(compared, request.app.state.store, found, limiter=_alone)
    return rows if kind == JSON else answers.as_csv(rows)  # type: ignore[return-value]


def compared(store: Store, searches: Iterable[Search]) -> list[dict[str, Any]]:
    """Rows of `autotune compare`, with its search's id as the name of a study. Raises Problem 409 if one cannot be compared."""
    with tempfile.TemporaryDirectory() as place:
        folders = []
        for search in searches:
            if (file := store.artifact(search.id, "study.tar.gz")) is None:
                raise Problem(
                    409, f"The search {search.id} has no study to compare.", "Compare searches that are done."
                )
            unpack(file[1], Path(place) / search.id)
            folders.append(str(Path(place) / search.id))
        command = ("nice", "-n", "19", sys.executable, "-m", "autotune", "compare", *folders, "--json")
        answer = json.loads(subprocess.run(command, capture_output=True, timeout=COMPARED_S).stdout)
    if "error" in answer:
        raise Problem(409, answer["error"]["message"].replace(f"{place}/", ""), answer["error"]["advice"])
    rows: list[dict[str, Any]] = answer["studies"]
    return rows


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
