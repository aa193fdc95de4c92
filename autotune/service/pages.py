"""The page: what the API answers as HTML, rendered here and complete without JavaScript."""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode
from uuid import uuid4

import yaml
from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import StringConstraints, ValidationError
from starlette.exceptions import HTTPException

from autotune.core.configuration import word
from autotune.core.errors import AutotuneError
from autotune.core.options import ARGUMENTS
from autotune.core.request import TASKS
from autotune.core.units import format_bytes, format_interval, format_seconds, parse_price, three_digits
from autotune.report.templates import text_of
from autotune.service import answers, api
from autotune.service.access import COOKIE, needs, sign_in
from autotune.service.accounts import RIGHTS, SESSION, Caller
from autotune.service.body import SearchBody, parse_body
from autotune.service.problems import InvalidField, Problem, problem_of
from autotune.service.store import ENDED, QUEUED, RUNNING, Event, Store
from autotune.space.file import read_yaml
from autotune.workload.model.builtin import BUILT_IN

STATES = {state: state.replace("_", " ").capitalize() for state in (QUEUED, RUNNING, *ENDED)}
FIELDS = {"model": str, "global_batch_size": int, "sequence_length": int, "dataset": str, "task": str, "name": str}
FIELDS |= {"device": str, "memory_limit": str, "n_trials": int, "timeout": str, "keep_numerics": bool}
"""Options that have a field of their own -> their type; all others are written as YAML."""

WORK = ("model", "task", "global_batch_size", "sequence_length", "dataset", "dataset_split")
"""Options that must be equal for speeds of two searches to be compared."""

SIZES = ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_size")
NOT_ARGUMENTS = ("model_arguments", "adapter", "data_arguments", "torch_switches", "environment_variables")
"""Parts of an answer that `TrainingArguments` does not hold."""

PLOT_WIDTH = 200.0
MOST_EVENTS = 100_000

Record = Mapping[str, Any]
"""A search as `answers.shown` has it, its result, a trial of that, or the body of an event."""

Interval = Sequence[float | None]
"""A mean and the ends of its 95 % interval; an upper end of None has no bound."""


# Words and numbers ------------------------------------------------------------------------------------------------


def interval(record: Record, name: str = "samples_per_second") -> Interval | None:
    """A number of a result with its interval; None where it is not known."""
    return [record[f"{name}{end}"] for end in ("", "_low", "_high")] if record and record[name] else None


def speed_text(speed: Interval | None) -> str:
    """`41.2 ± 0.3`; `about 41` where the interval is wider than the value; or a dash."""
    mean, low, high = speed or (None, None, None)
    if mean is None:
        return "–"
    if low is None or high is None or high - low > mean:
        return f"about {three_digits(mean)}"
    return format_interval(mean, low, high)


def cost_text(trial: Record | None, price: tuple[float, str]) -> str:
    """`13.53 EUR` for a million samples of this trial at a price of an hour; a dash where it has no speed."""
    speed = interval(trial or {})
    return f"{price[0] / 3600 / speed[0] * 1e6:.2f} {price[1]}" if speed and speed[0] else "–"


def ago(moment: datetime) -> str:
    """`3 min ago`."""
    seconds = max(1.0, (datetime.now(UTC) - moment).total_seconds())
    size, unit = next(age for age in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= age[0])
    return f"{seconds // size:.0f} {unit} ago"


def outline(search: Record) -> str:
    """One line of a search: its place in the queue, what it does and has reached, or how it ended."""
    if search["state"] == QUEUED:
        return f"Number {search['place']} in the queue"
    if search["state"] != RUNNING:
        return search["headline"] or search["statement"] or STATES[search["state"]]
    progress = search["progress"] or {}
    reached = f"{progress['speedup']:.2f}× so far; " if progress.get("speedup") else ""
    return f"{reached}{progress.get('doing') or 'choosing what to try'}"


def headline(search: Record, is_measured: bool) -> Sequence[str]:
    """The outline of a search in three parts: how many times as fast, the sentence, and what is beside it."""
    if search["state"] != RUNNING:
        parts = re.fullmatch(r"(\d[\d.]*x)?(.*?)(?: \((.*)\))?\.?", outline(search), re.DOTALL)
        return parts.groups("") if parts else ("", "", "")
    progress = search["progress"] or {}
    if progress.get("best") and progress["speedup"]:
        return f"{progress['speedup']:.2f}×", " as fast as your settings so far", progress["doing"]
    reached = "Nothing is faster than your settings so far" if is_measured else "Your own settings are measured first"
    return "", reached, progress.get("doing", "")


def plotted(values: Interval | None, high: float) -> list[float]:
    """A mean and the ends of its interval as places from 0 to `high` on PLOT_WIDTH; empty where there is none."""
    places = [PLOT_WIDTH * (high if value is None else value) / high for value in values or ()]
    return [round(min(PLOT_WIDTH - 4, max(4.0, place)), 1) for place in places]


def top_of(intervals: Iterable[Interval | None]) -> float:
    """End of an axis on which all of these means are, and their intervals where those are not very wide."""
    return 1.05 * max([min(each[2] or 2 * each[0], 2 * each[0]) for each in intervals if each and each[0]], default=1.0)


def trial_rows(events: Sequence[Event], best: int | None) -> list[dict[str, Any]]:
    """The latest numbers of each trial, the fastest first, what does not fit last."""
    latest = {event.body["number"]: event for event in events if event.kind in ("trial", "confirmed")}
    roles = {0: "yours"} | ({} if best is None else {best: "answer"})
    rows = [
        event.body | {"is_confirmed": event.kind == "confirmed", "role": roles.get(number, "")}
        for number, event in latest.items()
    ]
    top = top_of(row["samples_per_second"] for row in rows)
    rows.sort(key=lambda row: (bool(row["reason"]), -(row["samples_per_second"] or [0])[0]))
    return [row | {"plot": plotted(row["samples_per_second"], top)} for row in rows]


def timeline(events: Sequence[Event]) -> list[tuple[datetime, str, str]]:
    """States, why a search was queued again, preparations, and each new best: time, text, state."""
    lines: list[tuple[datetime, str, str]] = []
    best = None
    for event in events:
        body, text, state = event.body, "", event.body.get("state", "")
        if state:
            again = f", attempt {body['attempt']}" if state == RUNNING and body["attempt"] > 1 else ""
            text = f"{STATES[state]}{again}{f': {why}' if (why := body.get('reason')) and state == QUEUED else ''}"
        elif event.kind == "preparing":
            text = body["message"]
        elif body["best"] not in (None, best):
            best = body["best"]
            text = f"Best so far: trial {best}, {speed_text(body['best_samples_per_second'])} samples/s"
        if text and (not lines or lines[-1][1] != text):
            lines.append((event.at, text, state))
    return lines


def values_of(trial: Record | None) -> dict[str, Any]:
    """Sizes and settings of a trial of a result, by name."""
    return {name: trial[name] for name in SIZES} | trial["levers"] if trial else {}


def changes(after: Record, before: Record) -> list[tuple[str, str, str]]:
    """Values that differ, as name, before and after."""
    pairs = {name: (before.get(name, "–"), value) for name, value in after.items()}
    return [(name.replace("_", " "), word(old), word(new)) for name, (old, new) in pairs.items() if old != new]


def python(result: Record) -> str:
    """The answer as it is pasted; what no training argument holds as comments."""
    fields = [f"    {name}={value!r}," for name, value in result["training_arguments"].items()]
    others = [f"# {name.replace('_', ' ')}: {json.dumps(result[name])}" for name in NOT_ARGUMENTS if result.get(name)]
    begin = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    return "\n".join([*begin, '    output_dir="output",', *fields, ")", *others])


def command_line(wanted: Record, server: str) -> str:
    """The same search as `autotune search`; what is a file there follows as a comment."""
    flags, parts, files = {argument: option for option, argument in ARGUMENTS.items()}, [], []
    for name, value in wanted.items():
        flag = f"--{flags.get(name, name).replace('_', '-')}"
        if name == "args" or (name == "space" and "\n" in value):
            files.append(f"# {name}.yaml: {json.dumps(value)}")
            parts.append(f"{flag} {name}.yaml")
        elif isinstance(value, Mapping):
            texts = {key: ",".join(map(str, item)) if isinstance(item, list) else item for key, item in value.items()}
            parts += [f"{flag} {shlex.quote(f'{key}={text}')}" for key, text in texts.items()]
        elif name not in ("model", "name", "priority"):
            parts.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    command = [f"autotune search {shlex.quote(wanted['model'])}", *parts, f"--server {server}"]
    return "\n".join([" \\\n    ".join(command), *files])


def curl(wanted: Record, server: str) -> str:
    """The same search as a call of the API."""
    token, body = '-H "Authorization: Bearer $AUTOTUNE_TOKEN"', shlex.quote(json.dumps(wanted))
    return f"curl {token} \\\n    --json {body} \\\n    {server}{answers.ROOT}/searches"


# Answers ----------------------------------------------------------------------------------------------------------

_here = resources.files("autotune.service") / "static"
_STATIC = {"report.css": text_of("page.css")} | {name: (_here / name).read_text() for name in ("page.css", "live.js")}
_templates = Environment(
    loader=PackageLoader("autotune.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"ago": ago, "bytes": format_bytes, "seconds": format_seconds, "speed": speed_text}
_templates.filters |= {
    "changes": changes,
    "interval": interval,
    "outline": outline,
    "cost": cost_text,
    "values_of": values_of,
}
_templates.filters |= {"command_line": command_line, "curl": curl, "python": python}
_templates.filters["stamp"] = lambda moment: f"{moment:%d %b %Y, %H:%M} UTC"
_templates.globals |= {"STATES": STATES, "version": hashlib.sha256(repr(_STATIC).encode()).hexdigest()[:8]}


def shown(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """The template with these values, and who sees it."""
    common: dict[str, Any] = {"request": request, "server": str(request.base_url).rstrip("/")}
    common |= {"who": getattr(request.state, "caller", None), "session": getattr(request.state, "session", None)}
    return HTMLResponse(_templates.get_template(f"{name}.html").render(common | values), status)


def to(path: str) -> RedirectResponse:
    """To another page."""
    return RedirectResponse(path, 303)


class PageRoute(APIRoute):
    """A route whose errors are pages too; who is not signed in is sent to do so."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (HTTPException, RequestValidationError, AutotuneError) as error:
                problem = problem_of(error)
            if problem.status_code == 401:
                page = f"{request.url.path}?{request.url.query}" if request.method == "GET" else "/"
                return to(f"/login?next={quote(page)}")
            values = {"message": problem.detail, "advice": problem.advice}
            return shown(request, "problem", problem.status_code, **values)

        return handle


router = APIRouter(include_in_schema=False, route_class=PageRoute)
Viewer = Annotated[Caller, Depends(needs("viewer"))]
Submitter = Annotated[Caller, Depends(needs("submitter"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
Field = Annotated[str, Form()]
Role = Annotated[Literal["viewer", "submitter", "admin", "metrics"], Form()]
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
    """The form for the token."""
    return shown(request, "login", next=next, is_wrong=False)


@router.post("/login")
def signed_in(request: Request, token: Field = "", next: Field = "/") -> Response:
    """A session for the owner of this token."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Problem(403, "This request comes from another site.")
    if (signed := sign_in(request, token)) is None:
        return shown(request, "login", 401, next=next, is_wrong=True)
    answer = to(next if re.match(r"/(?![/\\])", next) else "/")
    seconds, is_tls = int(SESSION.total_seconds()), request.url.scheme == "https"
    answer.set_cookie(COOKIE, signed[0], max_age=seconds, secure=is_tls, httponly=True, samesite="strict")
    return answer


@router.post("/logout")
def signed_out(request: Request, _caller: Viewer) -> Response:
    """The session ends."""
    request.app.state.accounts.sign_out(request.cookies.get(COOKIE, ""))
    answer = to("/login")
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/")
def searches(
    request: Request,
    _caller: Viewer,
    state: api.Text = None,
    owner: api.Text = None,
    model: api.Text = None,
    cursor: api.Text = None,
) -> Response:
    """Searches, the newest first."""
    store: Store = request.app.state.store
    page, following = store.list(state=state or None, owner=owner or None, model=model or None, cursor=cursor)
    filters = {name: value for name, value in (("state", state), ("owner", owner), ("model", model)) if value}
    places = {search.id: store.place(search) for search in page if search.state == QUEUED}
    counts = {name: number for name, number in store.count().items() if number}
    return shown(
        request,
        "searches",
        searches=[answers.shown(search, places.get(search.id)) for search in page],
        filters=filters,
        counts=counts,
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
    more = yaml.safe_dump(rest, sort_keys=False, allow_unicode=True) if rest else ""
    return _form(request, {name: given.get(name, "") for name in FIELDS} | {"more": more})


@router.post("/new")
async def submitted(request: Request, caller: Submitter) -> Response:
    """Check the form, and start the search where that was its button."""
    form = {name: str(value).strip() for name, value in (await request.form()).items()}
    return await run_in_threadpool(_submitted, request, caller, form)


def _submitted(request: Request, caller: Caller, form: Mapping[str, str]) -> Response:
    values = {name: form.get(name, "") for name in (*FIELDS, "more")}
    try:
        body = _body(values)
        if form.get("do") != "start":
            checked: Any = api.submit(request, Response(), caller, body, dry_run=True)
            return _form(request, values, wanted=checked.request)
        # The same form sent twice is one search, a changed one is another.
        key = hashlib.sha256(f"{form.get('key', '')} {body.model_dump_json()}".encode()).hexdigest()
        search: Any = api.submit(request, Response(), caller, body, idempotency_key=key)
        return to(f"/searches/{search['id']}")
    except (RequestValidationError, AutotuneError) as error:
        problem = problem_of(error)
    if problem.status_code != 422:
        raise problem
    errors: dict[str, str] = {}
    for pointer, text in (problem.errors or {"/more": problem.detail}).items():
        name = pointer.split("/")[1]
        errors.setdefault(name if name in FIELDS else "more", f"{text} {problem.advice}".strip())
    return _form(request, values, 422, errors=errors)


def _body(values: Mapping[str, str]) -> SearchBody:
    """The body that a form states. Raises InvalidField and RequestValidationError."""
    try:
        body = parse_body(json.dumps(read_yaml(values["more"], aliases=False) or {}).encode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidField("/more", f"This cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(body, dict):
        raise InvalidField("/more", "These are no options.", "Write a line NAME: VALUE for each.")
    for name, kind in FIELDS.items():
        if text := values[name]:
            body[name] = kind(text) if kind is not int or text.isdecimal() else text
    try:
        return SearchBody.model_validate(body)
    except ValidationError as error:
        errors = [entry | {"loc": ("body", *entry["loc"])} for entry in error.errors()]
        raise RequestValidationError(errors, body=body) from error


def _form(
    request: Request, values: Record, status: int = 200, errors: Mapping[str, str] = {}, wanted: Record | None = None
) -> Response:
    state = request.app.state
    models, devices = [*BUILT_IN, *state.roots.names("models")], ["auto", *state.devices.names]
    names = {"models": models, "tasks": ["", *TASKS], "devices": devices, "key": uuid4().hex}
    return shown(request, "new", status, values=values, errors=errors, wanted=wanted, **names)


def _search(request: Request, search_id: str) -> dict[str, Any]:
    store: Store = request.app.state.store
    if (search := store.read(search_id)) is None:
        raise Problem(404, "There is no such search.", "It may have been deleted.")
    return answers.shown(search, store.place(search))


@router.get("/searches/{search_id}")
def one_search(request: Request, _caller: Viewer, search_id: SearchId) -> Response:
    """A search: what it found, does and did."""
    store, search = request.app.state.store, _search(request, search_id)
    events = store.events(search_id, limit=MOST_EVENTS)
    progress, result = search["progress"] or {}, search["result"] or {}
    best = result["best"]["number"] if result.get("best") else progress.get("best")
    rows = trial_rows(events, best)
    by_number = {row["number"]: row for row in rows}
    return shown(
        request,
        "search",
        search=search,
        result=result,
        progress=progress,
        headline=headline(search, bool(rows)),
        rows=rows,
        best=by_number.get(best),
        yours=by_number.get(0),
        timeline=timeline(events),
        last=events[-1].seq if events else 0,
        files={file.name: file for file in store.artifacts(search_id)},
        is_ended=search["state"] in ENDED,
    )


@router.post("/searches/{search_id}/cancel")
def cancel(request: Request, caller: Submitter, search_id: SearchId, now: Field = "") -> Response:
    """End a search, after its running probe or now."""
    api.cancel(request, Response(), caller, search_id, answers.Cancel(now=bool(now)))
    return to(f"/searches/{search_id}")


@router.post("/searches/{search_id}/resume")
def resume(request: Request, caller: Submitter, search_id: SearchId) -> Response:
    """Queue a search again."""
    api.resume(request, Response(), caller, search_id)
    return to(f"/searches/{search_id}")


@router.get("/compare")
def compare(
    request: Request,
    _caller: Viewer,
    search: Annotated[list[SearchId], Query(min_length=1, max_length=answers.MOST_COMPARED)],
    price: str = "",
) -> Response:
    """Answers of several searches side by side, and their costs at a price of an hour."""
    found, wrong, cost = [_search(request, search_id) for search_id in dict.fromkeys(search)], "", (0.0, "")
    try:
        cost = parse_price(price) if price else cost
    except ValueError as error:
        wrong = f"{error}."
    speedups = [interval(each["result"] or {}, "speedup") for each in found]
    top = top_of(speedups)
    rows = [
        (each, each["result"] or {}, speedup, plotted(speedup, top))
        for each, speedup in zip(found, speedups, strict=True)
    ]
    different = [name.replace("_", " ") for name in WORK if len({each["request"].get(name) for each in found}) > 1]
    dashed = plotted([1.0], top)
    return shown(request, "compare", rows=rows, dashed=dashed, different=different, cost=cost, price=price, wrong=wrong)


@router.get("/devices")
def devices(request: Request, caller: Viewer) -> Response:
    """The devices, and the search on each."""
    rows = [(row, _search(request, row["search"]) if row["search"] else None) for row in api.devices(request, caller)]
    return shown(request, "devices", rows=rows, last=request.app.state.store.last_change())


@router.get("/tokens")
def tokens(request: Request, caller: Admin) -> Response:
    """All tokens, without their secrets."""
    return shown(request, "tokens", tokens=api.tokens(request, caller), roles=[*RIGHTS], made=None)


@router.post("/tokens")
def create_token(request: Request, caller: Admin, user: Field, role: Role, days: Annotated[float, Form()]) -> Response:
    """A new token; its secret is in this answer alone."""
    made = api.create_token(request, caller, answers.NewToken(user=user, role=role, days=days))
    return shown(request, "tokens", 201, tokens=api.tokens(request, caller), roles=[*RIGHTS], made=made)


@router.post("/tokens/{token_id}/revoke")
def revoke_token(request: Request, caller: Admin, token_id: str) -> Response:
    """End a token and its sessions."""
    api.revoke_token(request, caller, token_id)
    return to("/tokens")
