"""Errors of the service as `application/problem+json` (RFC 9457), each with advice."""

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from autotune.core.errors import (
    AutotuneError,
    DevicesAway,
    InvalidRequest,
    StorageFailed,
    StudyInUse,
    StudyMismatch,
)
from autotune.core.paths import scrubbed
from autotune.service.records import Conflict, Forbidden, KeyReused, LimitReached

MEDIA_TYPE = "application/problem+json"
STATUS: Mapping[type[Exception], int] = {
    Forbidden: 403,
    StudyMismatch: 409,
    StudyInUse: 409,
    Conflict: 409,
    LimitReached: 429,
    KeyReused: 422,
    StorageFailed: 503,
    DevicesAway: 503,
    InvalidRequest: 422,
}
"""Status of an error of this class, or of one below it; of any other one it is 500."""
RETRY_S = {429: "60", 503: "5"}
"""Status -> seconds after which to try again, if the error has none."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Headers of every response that does not set one of them itself."""

_TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        **dict.fromkeys(("type", "title", "detail", "instance", "advice"), _TEXT),
        "status": {"type": "integer"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {"pointer": _TEXT, "detail": _TEXT},
            },
        },
    },
}

log = structlog.get_logger("autotune")


class Problem(HTTPException):
    """A response other than success. errors: JSON pointer into the body -> error there."""

    def __init__(
        self,
        status: int,
        detail: str,
        advice: str = "",
        *,
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        errors: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.advice, self.errors = advice, dict(errors or {})
        self.kind = kind or re.sub(r"[^a-z]+", "-", HTTPStatus(status).phrase.lower())


def problem_of(error: Exception) -> Problem:
    """The response to this error; without details of errors within the server."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return Problem(error.status_code, f"{error.detail.rstrip('.')}.", headers=error.headers)
        case RequestValidationError():
            return Problem(422, "The request has errors.", kind="invalid-request", errors=_errors(error))
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    if status == 500 or not isinstance(error, AutotuneError):
        if isinstance(error, AutotuneError):  # the web server logs the others
            log.error("unexpected_error", exc_info=error)
        return Problem(500, "The server failed to answer. Its log says why.", headers=SECURITY_HEADERS)
    if isinstance(error, StorageFailed):
        log.error("storage_failed", problem=error.message)
        return Problem(503, "The server cannot reach or write its data now.", "Try again later.", kind="storage-failed")
    message, advice = scrubbed(error.message), scrubbed(error.advice)
    kind = re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
    errors = {f"/{error.option}": message} if error.option else {}
    return Problem(status, message, advice, kind=kind, errors=errors)


def respond(request: Request, error: Exception) -> JSONResponse:
    """The response to a request that ended in this error."""
    problem = problem_of(error)
    request_id = getattr(request.state, "request_id", None)
    body = {
        "type": f"urn:autotune:problem:{problem.kind}",
        "title": problem.kind.replace("-", " ").capitalize(),
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": f"urn:autotune:request:{request_id}" if request_id else uuid4().urn,
    }
    body |= {"advice": problem.advice} if problem.advice else {}
    body |= (
        {"errors": [{"pointer": at, "detail": text} for at, text in problem.errors.items()]} if problem.errors else {}
    )
    retry = {"Retry-After": RETRY_S[problem.status_code]} if problem.status_code in RETRY_S else {}
    return JSONResponse(body, problem.status_code, retry | dict(problem.headers or {}), media_type=MEDIA_TYPE)


def _errors(error: RequestValidationError) -> dict[str, str]:
    """JSON pointer -> all errors there; for a parameter its name instead of a pointer."""
    errors: dict[str, str] = {}
    for entry in error.errors():
        pointer = "".join(
            f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in _location(entry, error.body)
        )
        text = scrubbed(entry["msg"])
        errors[pointer] = f"{errors[pointer]}; or: {text}" if pointer in errors else text
    return errors


def _location(entry: Mapping[str, Any], body: Any) -> Iterator[Any]:
    """The parts of an error's location that are in the body: pydantic names branches of its types too."""
    for part in entry["loc"][1:]:
        is_there = isinstance(body, (dict, list)) and (
            part in body if isinstance(body, dict) else isinstance(part, int)
        )
        if entry["loc"][0] == "body" and not is_there and entry["type"] != "missing":
            return
        yield part
        body = body[part] if is_there else None


def install(app: FastAPI) -> None:
    """Answer all errors of this application as problems."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return respond(request, error)

    for kind in (HTTPException, RequestValidationError, AutotuneError, Exception):
        app.add_exception_handler(kind, handle)
