"""What the API answers: its values and their schemas, the type that is liked best, files, comparisons."""

import csv
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_type_hints

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, create_model

from autotune.service.accounts import Token
from autotune.service.problems import Problem
from autotune.service.store import ENDED, QUEUED, RUNNING, Artifact, Search, Store

ROOT = "/api/v1"
CSV = "text/csv"
MOST_EVENTS = 500
"""In one answer."""
MOST_COMPARED = 8
COMPARED_S = 120.0
"""Deadline of a comparison."""

SANDBOXED = {
    "text/html": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts",
    "image/svg+xml": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
}
"""Type of a report's file -> its policy: scripts have no rights of this site, and the report's own policy holds too."""

OF_A_TRIAL = ("number", "configuration", "values", "outcome", "reason", "samples_per_second", "peak_bytes", "warnings")
_HIDDEN = ("version", "interruptions", "not_before", "pid", "pid_started")
"""Of a search, what is the server's own."""

_kinds: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(Search).items() if name not in _HIDDEN}
_kinds |= {
    "state": (Literal[(QUEUED, RUNNING, *ENDED)], ...),
    "place": (int | None, ...),
    "links": (dict[str, str], ...),
}
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


def fresh(request: Request, response: Response, tag: str) -> bool:
    """Whether the caller has this version already; else its tag is sent."""
    response.headers["ETag"] = f'"{tag}"'
    response.headers["Cache-Control"] = "private, no-cache"
    tags = (given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(","))
    return any(given in ("*", f'"{tag}"') for given in tags)


def accepted(request: Request, *offered: str) -> str:
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


def as_csv(rows: Sequence[Mapping[str, Any]]) -> Response:
    """Rows as a table; of a column that a row has not, the cell is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return Response(text.getvalue(), media_type=CSV)


def trial_rows(store: Store, search_id: str) -> list[dict[str, Any]]:
    """Trials of a search as far as it is, each as its latest event has it."""
    rows: dict[int, dict[str, Any]] = {}
    after = 0
    while events := store.events(search_id, after, MOST_EVENTS):
        for event in events:
            if event.kind in ("trial", "confirmed"):
                rows[event.body["number"]] = {name: event.body.get(name) for name in OF_A_TRIAL}
        after = events[-1].seq
    return list(rows.values())


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A trial as a row of plain values, with a column for each setting."""
    speed = dict(zip(("samples_per_second", "low", "high"), row["samples_per_second"] or [], strict=False))
    flat = {name: value for name, value in row.items() if name not in ("values", "samples_per_second", "warnings")}
    return flat | speed | {"warnings": "; ".join(row["warnings"] or [])} | (row["values"] or {})


def served(file: tuple[Artifact, bytes], request: Request) -> Response:
    """A file of a report as an answer, in which no script has rights of this site."""
    artifact, content = file
    is_shown = artifact.media_type in SANDBOXED or artifact.media_type in ("text/plain", "application/json")
    headers = {"Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{artifact.name}"'}
    if artifact.media_type in SANDBOXED:
        headers["Content-Security-Policy"] = SANDBOXED[artifact.media_type]
    response = Response(content, media_type=artifact.media_type, headers=headers)
    return (
        Response(status_code=304, headers={"ETag": response.headers["ETag"]})
        if fresh(request, response, artifact.sha256)
        else response
    )


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
