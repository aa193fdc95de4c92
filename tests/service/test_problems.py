"""Errors as problem+json: types, pointers, what is told and what is not."""

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from autotune.core.errors import InvalidRequest, InvalidSpace, SearchFailed, StorageFailed, StudyInUse, StudyMismatch
from autotune.service import problems
from autotune.service.problems import Problem
from autotune.service.records import Conflict, KeyReused, LimitReached


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: str | int


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: dict[str, Inner]


def answer(error: Exception, **options: bool) -> tuple[int, dict[str, object], dict[str, str]]:
    app = FastAPI()
    problems.install(app)

    @app.get("/")
    def fail() -> None:
        raise error

    response = TestClient(app, **options).get("/")
    assert response.headers["content-type"] == problems.MEDIA_TYPE
    return response.status_code, response.json(), dict(response.headers)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("No.", "Do."), 422, "invalid-request"),
        (InvalidSpace("No."), 422, "invalid-space"),
        (StudyMismatch("No."), 409, "study-mismatch"),
        (StudyInUse("No."), 409, "study-in-use"),
        (Conflict("No."), 409, "conflict"),
        (KeyReused("No."), 422, "key-reused"),
        (LimitReached("No."), 429, "limit-reached"),
        (Problem(421, "No.", kind="wrong-host"), 421, "wrong-host"),
    ],
)
def test_an_expected_error_has_a_status_a_type_and_its_advice(error: Exception, status: int, kind: str) -> None:
    code, body, _ = answer(error)
    assert (code, body["status"], body["type"]) == (status, status, f"urn:autotune:problem:{kind}")
    assert body["detail"] == "No."
    assert body.get("advice", "") == ("Do." if kind == "invalid-request" else "")
    assert body["title"]
    assert str(body["instance"]).startswith("urn:")


def test_what_is_tried_again_later_says_when() -> None:
    assert answer(LimitReached("Many."))[2]["retry-after"] == "60"
    assert answer(StorageFailed("Gone."))[2]["retry-after"] == "5"


def test_a_failure_of_the_server_tells_nothing_of_it() -> None:
    for error, status in [
        (KeyError("/srv/secret"), 500),
        (SearchFailed("/srv/secret"), 500),
        (StorageFailed("/srv/secret"), 503),
    ]:
        code, body, _ = answer(error, raise_server_exceptions=False)
        assert code == status
        assert "secret" not in str(body)


def test_a_failure_of_the_server_has_the_security_headers() -> None:
    headers = answer(KeyError("x"), raise_server_exceptions=False)[2]
    assert {name: headers.get(name.lower()) for name in problems.SECURITY_HEADERS} == problems.SECURITY_HEADERS


def test_paths_in_messages_are_cut() -> None:
    assert answer(InvalidRequest("There is /srv/models/team/x.", "See /srv/models/y."))[1]["detail"] == "There is …/x."


def test_a_field_that_is_wrong_is_pointed_at() -> None:
    body = answer(InvalidRequest("There is no setting 'a'.", option="fix"))[1]
    assert body["errors"] == [{"pointer": "/fix", "detail": "fix: There is no setting 'a'."}]
    assert body["type"] == "urn:autotune:problem:invalid-request"


@pytest.mark.parametrize(
    ("sent", "pointers"),
    [
        ({"parts": {"a/b~": {"amount": [1]}}}, ["/parts/a~1b~0/amount"]),
        ({"parts": {"a": {"amount": 1, "other": 2}}}, ["/parts/a/other"]),
        ({"parts": {"a": {}}}, ["/parts/a/amount"]),
        ({}, ["/parts"]),
        ([], [""]),
    ],
)
def test_pointers_lead_to_the_places_in_the_body(sent: object, pointers: list[str]) -> None:
    app = FastAPI()
    problems.install(app)

    @app.post("/")
    def take(body: Body) -> None:
        pass

    answer = TestClient(app).post("/", json=sent)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == pointers
