"""Who may call what: tokens, roles, sessions, host names, limits; over all routes of the API's description."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from sqlalchemy import func, select
from starlette.testclient import TestClient

from autotune.service import access, api
from autotune.service.access import COOKIE, MOST_BYTES, MOST_FAILURES, needs
from autotune.service.problems import MEDIA_TYPE, SECURITY_HEADERS
from autotune.service.roots import Roots
from autotune.service.tables import audit, metadata
from tests.service.application import SMALL, URL, Service, make_app, wait_until

OPERATIONS = [
    (method.upper(), path, operation)
    for path, item in api.document()["paths"].items()
    for method, operation in item.items()
]
ADMINS = {
    ("GET", "/api/v1/audit"),
    ("GET", "/api/v1/tokens"),
    ("POST", "/api/v1/tokens"),
    ("DELETE", "/api/v1/tokens/{token_id}"),
}


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Service:
    return Service(make_app(tmp_path, database_url, Roots()))


def contents(service: Service) -> dict[str, list[Any]]:
    """All that the database holds but for the audit and the days on which tokens were used."""
    tables = [table for table in metadata.sorted_tables if table.name != "audit"]
    with service.app.state.engine.connect() as connection:
        rows = {table.name: connection.execute(select(table)).mappings().all() for table in tables}
    return {
        name: [{key: value for key, value in row.items() if key != "last_used_on"} for row in found]
        for name, found in rows.items()
    }


def filled(path: str, search_id: str) -> str:
    values = {"search_id": search_id, "number": "1", "name": "report.html", "token_id": "0" * 8}
    return path.format(**values)


def walk(service: Service, client: TestClient) -> Iterator[tuple[str, str, int]]:
    """The status of every operation, with a body that it would take."""
    search = service.queued("bertha")
    bodies: dict[str, Any] = {"/searches": SMALL, "/cancel": {"now": True}, "/tokens": {"user": "eve", "role": "admin"}}
    for method, path, operation in OPERATIONS:
        before = contents(service)
        body = (
            next((body for end, body in bodies.items() if path.endswith(end)), None)
            if "requestBody" in operation
            else None
        )
        headers = {"Accept": "application/json"}
        answer = client.request(method, filled(path, search.id), json=body, headers=headers)
        yield method, path, answer.status_code
        if answer.status_code in (401, 403):
            assert answer.headers["content-type"] == MEDIA_TYPE
            assert contents(service) == before, f"{method} {path} was refused, and changed something"


def test_without_a_token_every_operation_is_refused(service: Service) -> None:
    answers = list(walk(service, service.client()))
    assert len(answers) >= 20
    assert [answer for answer in answers if answer[2] != 401] == []


def test_a_viewer_changes_nothing(service: Service) -> None:
    answers = list(walk(service, service.client("vera", "viewer")))
    for method, path, status in answers:
        assert (status == 403) == (method != "GET" or (method, path) in ADMINS), (method, path, status)


def test_a_submitter_changes_nothing_of_others(service: Service) -> None:
    for method, path, status in walk(service, service.client("anna")):
        is_refused = (method, path) in ADMINS or (method != "GET" and "{search_id}" in path)
        assert (status == 403) == is_refused, (method, path, status)


def test_an_admin_may_do_everything(service: Service) -> None:
    assert not [answer for answer in walk(service, service.client("root", "admin")) if answer[2] in (401, 403)]


def test_the_role_metrics_reads_no_searches(service: Service) -> None:
    assert {status for _, _, status in walk(service, service.client("prometheus", "metrics"))} == {403}


# Wrong tokens -----------------------------------------------------------------------------------------------------


def refusals(service: Service) -> int:
    """Rows of the audit about wrong tokens."""
    query = select(func.count()).select_from(audit).where(audit.c.outcome == "refused")
    with service.app.state.engine.connect() as connection:
        return int(connection.scalar(query) or 0)


def test_an_address_has_so_many_wrong_tokens_a_minute(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = service.client("anna"), service.client()
    wrong = {"Authorization": "Bearer wrong"}
    assert [bad.get("/api/v1/me", headers=wrong).status_code for _ in range(MOST_FAILURES)] == [401] * MOST_FAILURES
    answer = bad.get("/api/v1/me", headers=wrong)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 61
    assert good.get("/api/v1/me").status_code == 200, "a right one is taken from any address"
    elsewhere = TestClient(service.app, base_url=URL, client=("10.0.0.2", 1), headers=wrong)
    assert elsewhere.get("/api/v1/me").status_code == 401
    assert refusals(service) == MOST_FAILURES + 1, "of more than that nothing is written"
    clock = access.time.monotonic
    monkeypatch.setattr(access.time, "monotonic", lambda: clock() + 61)
    assert bad.get("/api/v1/me", headers=wrong).status_code == 401


def test_requests_without_a_token_are_not_counted(service: Service) -> None:
    client = service.client()
    assert {client.get("/api/v1/me").status_code for _ in range(MOST_FAILURES + 2)} == {401}
    assert service.client("anna").get("/api/v1/me").status_code == 200


# Sessions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(service: Service) -> Service:
    """With a form as the page has them."""

    @service.app.post("/form", dependencies=[needs("submitter")])
    async def form(request: Request) -> dict[str, str]:
        return {name: str(value) for name, value in (await request.form()).items()}

    return service


def signed_in(service: Service, role: str = "submitter") -> TestClient:
    client = service.client()
    client.cookies.set(COOKIE, service.accounts.sign_in(service.accounts.caller(service.token("anna", role))))
    return client


SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8321"},
        {"Origin": URL, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_session_changes_nothing_from_another_site(headers: dict[str, str], page: Service) -> None:
    client = signed_in(page)
    for path in ("/api/v1/searches", "/form"):
        answer = client.post(path, json=SMALL, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:autotune:problem:cross-site")
    assert page.store.list()[0] == []


@pytest.mark.parametrize("origin", [SAME, {"Origin": URL}])
def test_a_session_changes_what_its_page_says(origin: dict[str, str], page: Service) -> None:
    client = signed_in(page)
    assert client.post("/api/v1/searches", json=SMALL, headers=origin).status_code == 201
    assert client.post("/form", data={"a": "b"}, headers=origin).json() == {"a": "b"}


def test_wrong_tokens_at_the_login_are_limited_too(service: Service) -> None:
    client, good = service.client(follow_redirects=False), service.token("anna")
    assert {client.post("/login", data={"token": "x"}).status_code for _ in range(MOST_FAILURES)} == {401}
    assert client.post("/login", data={"token": "x"}).status_code == 429
    assert COOKIE not in client.cookies
    assert client.post("/login", data={"token": good}).status_code == 303


def test_the_role_metrics_does_not_sign_in(service: Service) -> None:
    client = service.client(follow_redirects=False)
    answer = client.post("/login", data={"token": service.token("prometheus", "metrics")})
    assert answer.status_code == 403
    assert COOKIE not in client.cookies


def test_an_encrypted_session_is_this_hosts_alone(service: Service) -> None:
    client = TestClient(service.app, base_url="https://127.0.0.1", headers=SAME, follow_redirects=False)
    answer = client.post("/login", data={"token": service.token("anna")})
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"__Host-{COOKIE}=")
    assert {"Secure", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert client.get("/").status_code == 200
    plain = client.cookies[f"__Host-{COOKIE}"]
    client.cookies.clear()
    client.cookies.set(COOKIE, plain)  # as another server of this host could
    assert client.get("/").status_code == 303


# Names, bodies, headers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "127.0.0.2", "a b"]
)
def test_another_host_name_is_refused(host: str, service: Service) -> None:
    answer = service.client("anna").get("/api/v1/me", headers={"Host": host})
    assert (answer.status_code, answer.headers["content-type"]) == (421, MEDIA_TYPE)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8321", "localhost", "LOCALHOST:1", "[::1]:8321", "tune.example", "Tune.Example:443"]
)
def test_the_servers_own_names_are_taken(host: str, service: Service) -> None:
    assert service.client("anna").get("/api/v1/me", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("peer", "status"),
    [("10.9.8.7", 200), ("127.0.0.1", 200), ("10.9.8.8", 403), ("::ffff:10.9.8.8", 403), ("unknown", 403)],
)
def test_an_unencrypted_port_is_for_its_proxy_alone(peer: str, status: int, tmp_path: Path, database_url: str) -> None:
    options = {"host": "0.0.0.0", "allowed_hosts": ("tune.example",), "behind_proxy": ("10.9.8.7",)}
    service = Service(make_app(tmp_path, database_url, Roots(), **options))
    forwarded = {"X-Forwarded-For": "10.9.8.7", "X-Forwarded-Proto": "https"}
    client = TestClient(service.app, base_url=URL, client=(peer, 1), headers=service.client("anna").headers | forwarded)
    answer = client.get("/api/v1/me")
    assert answer.status_code == status
    assert ("strict-transport-security" in answer.headers) == (peer == "10.9.8.7"), "only a proxy's word counts"
    assert client.get("/livez").status_code == 200, "which other programs ask for by address"


def test_head_is_get_without_a_body_and_ends_streams_too(service: Service) -> None:
    client, search = service.client("anna"), service.queued()
    for path in ("/livez", "/login", "/api/v1/searches", f"/api/v1/searches/{search.id}", "/api/v1/nothing"):
        known, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (known.status_code, b"")
        assert head.headers["content-type"] == known.headers["content-type"]
    stream = client.head(f"/api/v1/searches/{search.id}/events", headers={"Accept": "text/event-stream"})
    assert (stream.status_code, stream.content) == (200, b"")
    wait_until(lambda: service.app.state.hub.streams == 0)


def padded(size: int) -> bytes:
    body = json.dumps(SMALL).encode()
    return body + b" " * (size - len(body))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_has_so_many_bytes(is_chunked: bool, service: Service) -> None:
    client = service.client("anna")

    def send(size: int) -> Any:
        content = iter([padded(size)[:-1], b" "]) if is_chunked else padded(size)
        return client.post("/api/v1/searches", content=content, headers={"Content-Type": "application/json"})

    assert send(MOST_BYTES).status_code == 201
    answer = send(MOST_BYTES + 1)
    assert (answer.status_code, answer.headers["content-type"]) == (413, MEDIA_TYPE)


def test_every_answer_has_the_security_headers(service: Service) -> None:
    client = service.client("anna")
    search = service.queued()
    for path in ("/api/v1/me", "/api/v1/nothing", f"/api/v1/searches/{search.id}"):
        headers = client.get(path).headers
        missing = {name for name, value in SECURITY_HEADERS.items() if headers.get(name) != value}
        assert missing <= {"Cache-Control"}, path
    assert client.get("/api/v1/me").headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in headers
    secure = TestClient(service.app, base_url="https://127.0.0.1", headers=client.headers)
    assert secure.get("/api/v1/me").headers["strict-transport-security"]
    assert not [name for name in headers if name.startswith("access-control")]
