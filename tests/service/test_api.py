"""Every route of the API, by a client against the application and a real database."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from autotune.service import api
from autotune.service.problems import MEDIA_TYPE
from autotune.service.roots import Roots
from autotune.space.file import named_spaces
from autotune.workload.model.builtin import BUILT_IN
from tests.service.application import SMALL, Service, make_app

STUDIES = (Path("reports/gpt2-mini-causal-lm-gb48-cpu"), Path("tests/data/studies/gpt2-mini-600MiB"))
PLACE = "/api/v1/searches"


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Service:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "config.json").write_text('{"model_type": "bert"}')
    roots = Roots({"team": tmp_path / "models"}, {})
    return Service(make_app(tmp_path, database_url, roots))


def problem(answer: Any, status: int, kind: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["type"]) == (status, f"urn:autotune:problem:{kind}"), body
    assert answer.headers["content-type"] == MEDIA_TYPE
    return body


# Submitting -------------------------------------------------------------------------------------------------------


def test_a_submitted_search_is_queued_and_can_be_read(service: Service) -> None:
    client = service.client("anna")
    made = client.post(PLACE, json=SMALL | {"name": "mine", "priority": -1, "fix": {"precision": "fp32"}})
    assert made.status_code == 201
    read = client.get(made.headers["location"])
    assert read.headers["etag"] == made.headers["etag"]
    search = read.json()
    assert search == made.json()
    assert {
        name: search[name] for name in ("owner", "name", "model", "state", "position", "priority", "device", "attempt")
    } == {
        "owner": "anna",
        "name": "mine",
        "model": "bert-mini",
        "state": "queued",
        "position": 1,
        "priority": -1,
        "device": "cpu",
        "attempt": 0,
    }
    assert search["request"]["fix"] == {"precision": "fp32"}
    assert search["links"]["self"] == made.headers["location"] == f"{PLACE}/{search['id']}"
    assert "pid" not in search
    assert service.store.read(search["id"]).request == search["request"]


def test_a_search_without_a_name_is_named_by_what_it_trains(service: Service) -> None:
    assert service.client("anna").post(PLACE, json=SMALL).json()["name"] == "bert-mini 8"


def test_a_dry_run_checks_and_queues_nothing(service: Service) -> None:
    client = service.client("anna")
    good = client.post(PLACE, json=SMALL, params={"dry_run": True})
    assert (good.status_code, good.json()) == (200, {"request": SMALL})
    problem(client.post(PLACE, json=SMALL | {"fix": {"x": 1}}, params={"dry_run": True}), 422, "invalid-request")
    assert service.store.list()[0] == []


def test_the_same_key_gives_the_same_search(service: Service) -> None:
    client, key = service.client("anna"), {"Idempotency-Key": "5a0e-1"}
    first, again = (client.post(PLACE, json=SMALL, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert again.headers["location"] == first.headers["location"]
    for other in ({"name": "other"}, {"priority": -5}, {"seed": 1}):
        problem(client.post(PLACE, json=SMALL | other, headers=key), 422, "key-reused")
    assert service.client("bertha").post(PLACE, json=SMALL, headers=key).status_code == 201
    problem(client.post(PLACE, json=SMALL, headers={"Idempotency-Key": "x" * 256}), 422, "invalid-request")


def test_a_device_that_is_not_lent_is_refused(service: Service) -> None:
    body = problem(service.client("anna").post(PLACE, json=SMALL | {"device": "cuda"}), 422, "invalid-request")
    assert body["errors"][0]["pointer"] == "/device"


def test_the_twenty_first_in_the_queue_is_refused(service: Service) -> None:
    client = service.client("anna")
    assert [client.post(PLACE, json=SMALL).status_code for _ in range(20)] == [201] * 20
    answer = client.post(PLACE, json=SMALL)
    problem(answer, 429, "limit-reached")
    assert answer.headers["retry-after"]
    assert service.client("bertha").post(PLACE, json=SMALL).status_code == 201


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b"[" * 40 + b"]" * 40, "application/json", 400),
        (b"\xff", "application/json; charset=utf-8", 400),
        (json.dumps(SMALL).encode(), "text/plain", 415),
        (json.dumps(SMALL).encode(), "", 415),
        (json.dumps(SMALL).encode(), "application/x-python-pickle", 415),
        (b"model=bert-mini", "application/x-www-form-urlencoded", 415),
        (b"[]", "application/json", 422),
        (b"null", "application/json", 422),
        (b"", "application/json", 422),
    ],
)
def test_a_body_that_is_no_request_is_refused(content: bytes, kind: str, status: int, service: Service) -> None:
    answer = service.client("anna").post(PLACE, content=content, headers={"Content-Type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE)


def test_no_address_is_ever_opened(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        client = service.client("anna")
        for scheme in ("http", "https", "ftp", "file", "s3", "hf", "git+http"):
            for field in ("model", "dataset", "tokenizer", "space"):
                answer = client.post(PLACE, json=SMALL | {field: f"{scheme}://127.0.0.1:{port}/x"})
                assert answer.status_code == 422, (scheme, field)
        with pytest.raises(BlockingIOError):
            listener.accept()


# Reading ----------------------------------------------------------------------------------------------------------


def test_a_list_goes_on_where_the_page_before_ended(service: Service) -> None:
    made = [service.queued(f"user-{number % 3}").id for number in range(7)]
    client, found, url = service.client("vera", "viewer"), [], f"{PLACE}?limit=3"
    while url:
        answer = client.get(url)
        found += [search["id"] for search in answer.json()]
        made.append(service.queued("late").id)  # while it is read
        url = answer.links.get("next", {}).get("url")
    assert found == made[6::-1]


def test_a_list_is_filtered_and_keeps_its_filter(service: Service) -> None:
    failed = service.ended("failed", "carla")
    for owner in ("anna", "bertha", "anna"):
        service.queued(owner)
    client = service.client("vera", "viewer")

    def ids(**filters: Any) -> list[str]:
        return [search["id"] for search in client.get(PLACE, params=filters).json()]

    assert len(ids(owner="anna")) == 2
    assert ids(state="failed") == ids(owner="carla") == [failed.id]
    assert ids(model="gpt2-mini") == []
    link = client.get(PLACE, params={"owner": "anna", "limit": 1}).links["next"]["url"]
    assert "owner=anna" in link
    assert [search["owner"] for search in client.get(link).json()] == ["anna"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "state=lost", "cursor=x", "cursor=%00", "owner=%00"]
)
def test_a_list_that_cannot_be_is_refused(query: str, service: Service) -> None:
    problem(service.client("vera", "viewer").get(f"{PLACE}?{query}"), 422, "invalid-request")


def test_what_has_not_changed_is_not_sent_again(service: Service) -> None:
    first, search = service.queued(), service.queued()
    client = service.client("vera", "viewer")
    answer = client.get(f"{PLACE}/{search.id}")
    tag = answer.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = client.get(f"{PLACE}/{search.id}", headers={"If-None-Match": known})
        assert (same.status_code, same.headers["etag"], same.content) == (304, tag, b"")
    service.store.cancel(first.id, False)
    moved = client.get(f"{PLACE}/{search.id}", headers={"If-None-Match": tag})
    assert (moved.status_code, moved.json()["position"]) == (200, 1)
    service.store.cancel(search.id, False)
    assert (
        client.get(f"{PLACE}/{search.id}", headers={"If-None-Match": moved.headers["etag"]}).json()["state"]
        == "cancelled"
    )


@pytest.mark.parametrize("search_id", ["0" * 32, "x", "%00", "%2e%2e%2fetc", "0" * 5000])
def test_a_search_that_is_not_there_is_not_found(search_id: str, service: Service) -> None:
    client = service.client("root", "admin")
    paths = ["", "/events", "/trials", "/result", "/files", "/files/report.html"]
    for path in paths:
        assert client.get(f"{PLACE}/{search_id}{path}", follow_redirects=False).status_code in (404, 405, 307), path
    assert client.get(f"{PLACE}/{'0' * 32}").json()["type"] == "urn:autotune:problem:not-found"


# Cancel, resume, delete -------------------------------------------------------------------------------------------


def test_a_queued_search_is_cancelled_at_once_resumed_and_deleted(service: Service) -> None:
    client, search = service.client("anna"), service.queued()
    url = f"{PLACE}/{search.id}"
    for _ in range(2):
        cancelled = client.post(f"{url}/cancel")
        assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    resumed = client.post(f"{url}/resume")
    assert (resumed.status_code, resumed.json()["state"], resumed.json()["position"]) == (202, "queued", 1)
    problem(client.post(f"{url}/resume"), 409, "conflict")
    problem(client.delete(url), 409, "conflict")
    client.post(f"{url}/cancel", json={})
    folder = client.app.state.dispatcher.folder(search.id)
    (folder / "study").mkdir(parents=True)
    assert client.delete(url).status_code == 204
    assert not folder.exists()
    problem(client.delete(url), 404, "not-found")
    assert service.store.read(search.id) is None


@pytest.mark.parametrize(
    ("body", "wish"), [(None, "patient"), ({}, "patient"), ({"now": False}, "patient"), ({"now": True}, "now")]
)
def test_a_running_search_is_wanted_to_end(body: Any, wish: str, service: Service) -> None:
    search = service.running()
    answer = service.client("anna").post(f"{PLACE}/{search.id}/cancel", **({} if body is None else {"json": body}))
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel"]) == (202, "running", wish)
    assert service.store.read(search.id).cancel == wish


@pytest.mark.parametrize("body", [{"now": 1}, {"when": "now"}, []])
def test_a_wish_that_is_none_is_refused(body: Any, service: Service) -> None:
    search = service.running()
    assert service.client("anna").post(f"{PLACE}/{search.id}/cancel", json=body).status_code == 422
    assert service.store.read(search.id).cancel is None


def test_an_admin_may_do_it_for_others_and_it_is_noted(service: Service) -> None:
    search = service.queued("anna")
    assert service.client("root", "admin").post(f"{PLACE}/{search.id}/cancel").status_code == 202
    from sqlalchemy import select

    from autotune.service.tables import audit

    with service.app.state.engine.connect() as connection:
        rows = connection.execute(select(audit.c.user, audit.c.action, audit.c.search_id, audit.c.remote)).all()
    assert rows == [("root", "cancel", search.id, "testclient")]


# Events -----------------------------------------------------------------------------------------------------------

TRIAL = {
    "number": 0,
    "configuration": "8 x 1",
    "values": {"precision": "fp32"},
    "outcome": "completed",
    "reason": "",
    "samples_per_second": [20.0, 19.0, 21.0],
    "peak_bytes": 1000,
    "warnings": ["a", "b"],
    "best": 0,
    "doing": "x",
}


def measured(service: Service) -> Any:
    search = service.running()
    events = [{"key": "trial:0", "kind": "trial", "body": TRIAL}]
    events += [{"key": "trial:1", "kind": "trial", "body": TRIAL | {"number": 1, "samples_per_second": None}}]
    events += [{"key": "round:0:1", "kind": "confirmed", "body": TRIAL | {"samples_per_second": [22.0, 21.5, 22.5]}}]
    service.store.add_events(search.id, search.attempt, events)
    return search


def test_events_are_there_as_pages_of_json(service: Service) -> None:
    search, client = measured(service), service.client("vera", "viewer")
    headers = {"Accept": "application/json"}
    everything = client.get(f"{PLACE}/{search.id}/events", headers=headers).json()
    assert [(event["id"], event["kind"]) for event in everything] == [
        (1, "state"),
        (2, "state"),
        (3, "trial"),
        (4, "trial"),
        (5, "confirmed"),
    ]
    assert everything[2]["body"] == TRIAL
    page = client.get(f"{PLACE}/{search.id}/events", params={"after": 2, "limit": 2}, headers=headers).json()
    assert page == everything[2:4]
    changes = client.get("/api/v1/events", headers=headers).json()
    assert [(event["search"], event["body"]["state"]) for event in changes] == [
        (search.id, "queued"),
        (search.id, "running"),
    ]
    assert client.get("/api/v1/events", params={"after": changes[0]["id"]}, headers=headers).json() == changes[1:]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.1", "application/json"),
    ],
)
def test_the_type_is_the_one_that_is_named(accept: str, kind: str, service: Service) -> None:
    search = service.ended()
    answer = service.client("vera", "viewer").get(f"{PLACE}/{search.id}/events", headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == kind


# Reports ----------------------------------------------------------------------------------------------------------


def test_trials_are_a_row_each_with_their_latest_speed(service: Service) -> None:
    search, client = measured(service), service.client("vera", "viewer")
    rows = client.get(f"{PLACE}/{search.id}/trials").json()
    assert [(row["number"], row["samples_per_second"]) for row in rows] == [(0, [22.0, 21.5, 22.5]), (1, None)]
    assert "best" not in rows[0]


def test_an_ended_search_has_its_result_its_files_and_its_logs(service: Service) -> None:
    files = {
        "report.html": b"<script>alert(1)</script>",
        "figure.svg": b"<svg/>",
        "trials.csv": b"number\n0\n",
        "trl.yaml": b"a: 1\n",
        "trial-3.log": b"<b>Traceback</b>",
        "trials.parquet": b"PAR1",
    }
    search = service.ended(result={"headline": "Fast."}, artifacts=files)
    client, url = service.client("vera", "viewer"), f"{PLACE}/{search.id}"
    assert client.get(f"{url}/result").json() == {"headline": "Fast."}
    listed = {file["name"]: file for file in client.get(f"{url}/files").json()}
    assert {name: file["size"] for name, file in listed.items()} == {
        name: len(content) for name, content in files.items()
    }
    for name, content in files.items():
        answer = client.get(f"{url}/files/{name}")
        assert answer.content == content
        assert answer.headers["content-type"].partition(";")[0] == listed[name]["media_type"]
        tag = {"If-None-Match": answer.headers["etag"]}
        known = client.get(f"{url}/files/{name}", headers=tag)
        assert (known.status_code, known.headers["cache-control"]) == (304, answer.headers["cache-control"])


def test_a_report_runs_its_script_without_any_right(service: Service) -> None:
    search = service.ended(artifacts={"report.html": b"x", "figure.svg": b"x", "trl.yaml": b"x", "a.txt": b"x"})
    client = service.client("vera", "viewer")

    def headers(name: str) -> Any:
        return client.get(f"{PLACE}/{search.id}/files/{name}").headers

    report = headers("report.html")["content-security-policy"].split("; ")
    assert {"default-src 'none'", "sandbox allow-scripts", "form-action 'none'", "base-uri 'none'"} <= set(report)
    assert "sandbox" in headers("figure.svg")["content-security-policy"].split("; ")
    assert "script" not in headers("figure.svg")["content-security-policy"]
    assert headers("trl.yaml")["content-disposition"] == 'attachment; filename="trl.yaml"'
    for name in ("report.html", "trl.yaml", "a.txt"):
        assert headers(name)["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["other.html", "..%2freport.html", "%2e%2e", "report.html%00", "/etc/passwd", "report.html/"]
)
def test_files_are_those_of_the_report(name: str, service: Service) -> None:
    search = service.ended(artifacts={"report.html": b"x"})
    assert (
        service.client("vera", "viewer").get(f"{PLACE}/{search.id}/files/{name}", follow_redirects=False).status_code
        != 200
    )


def test_what_has_no_result_says_so(service: Service) -> None:
    search, client = service.queued(), service.client("vera", "viewer")
    assert "queued" in problem(client.get(f"{PLACE}/{search.id}/result"), 404, "not-found")["detail"]
    assert client.get(f"{PLACE}/{search.id}/files").json() == []
    assert client.get(f"{PLACE}/{search.id}/trials").json() == []


# Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/searches?stat=done", "/me?token=x", "/searches?state=done&ownr=anna"])
def test_a_parameter_that_does_not_exist_is_refused_and_named(path: str, service: Service) -> None:
    body = problem(service.client("vera", "viewer").get(f"/api/v1{path}"), 422, "invalid-request")
    (error,) = body["errors"]
    assert error["pointer"] in ("stat", "token", "ownr")
    assert error["pointer"] in body["detail"]


def test_a_priority_that_a_role_may_not_give_is_forbidden(service: Service) -> None:
    wanted = SMALL | {"priority": 1}
    body = problem(service.client("anna").post(PLACE, json=wanted), 403, "forbidden")
    assert [error["pointer"] for error in body["errors"]] == ["/priority"]
    assert service.client("root", "admin").post(PLACE, json=wanted).status_code == 201


# The server -------------------------------------------------------------------------------------------------------


def test_devices_show_what_runs_on_them(service: Service) -> None:
    client = service.client("vera", "viewer")
    (device,) = client.get("/api/v1/devices").json()
    assert (device["name"], device["search"]) == ("cpu", None)
    search = service.running()
    assert client.get("/api/v1/devices").json()[0]["search"] == search.id


def test_spaces_models_and_the_caller_are_there(service: Service) -> None:
    client = service.client("vera", "viewer")
    assert {space["name"] for space in client.get("/api/v1/spaces").json()} == {*named_spaces()}
    names = client.get("/api/v1/models").json()
    assert {*names["built_in"]} == {*BUILT_IN}
    assert (names["models"], names["data"], names["hub"], names["hub_patterns"]) == (["team:bert"], [], "off", [])
    me = client.get("/api/v1/me").json()
    assert (me["user"], me["role"]) == ("vera", "viewer")


def test_tokens_are_made_listed_and_ended(service: Service) -> None:
    client = service.client("root", "admin")
    made = client.post("/api/v1/tokens", json={"user": "anna", "role": "submitter", "days": 1})
    assert made.status_code == 201
    token, secret = made.json()["token"], made.json()["secret"]
    listed = client.get("/api/v1/tokens")
    assert token["id"] in [entry["id"] for entry in listed.json()]
    assert secret not in listed.text
    anna = {"Authorization": f"Bearer {secret}"}
    assert service.client().get("/api/v1/me", headers=anna).json() == {
        "user": "anna",
        "role": "submitter",
        "token_id": token["id"],
        "most_devices": None,
    }
    assert client.delete(f"/api/v1/tokens/{token['id']}").status_code == 204
    problem(client.delete(f"/api/v1/tokens/{token['id']}"), 404, "not-found")
    assert service.client().get("/api/v1/me", headers=anna).status_code == 401


def test_the_audit_says_who_did_what(service: Service) -> None:
    root = service.client("root", "admin")
    limited = {"user": "anna", "role": "submitter", "most_devices": 1}
    made = root.post("/api/v1/tokens", json=limited).json()
    anna = service.client()
    anna.headers["Authorization"] = f"Bearer {made['secret']}"
    assert anna.get("/api/v1/me").json()["most_devices"] == 1
    assert anna.post("/api/v1/searches", json=SMALL).status_code == 201
    entries = root.get("/api/v1/audit").json()
    assert [(entry["user"], entry["action"]) for entry in entries][-1] == ("anna", "submit")
    assert root.get("/api/v1/audit", params={"after": entries[-1]["id"]}).json() == []
    problem(anna.get("/api/v1/audit"), 403, "forbidden")


@pytest.mark.parametrize(
    "token",
    [
        {"user": "a b", "role": "viewer"},
        {"user": "a", "role": "viewer", "most_devices": 0},
        {"user": "a", "role": "root"},
        {"user": "a", "role": "viewer", "days": 0},
        {"user": "a", "role": "viewer", "days": 1e300},
        {"role": "viewer"},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(token: dict[str, Any], service: Service) -> None:
    problem(service.client("root", "admin").post("/api/v1/tokens", json=token), 422, "invalid-request")


def test_the_last_valid_token_of_an_admin_is_not_ended(service: Service) -> None:
    client = service.client("root", "admin")
    mine = client.get("/api/v1/me").json()["token_id"]
    problem(client.delete(f"/api/v1/tokens/{mine}"), 409, "conflict")
    assert client.get("/api/v1/me").status_code == 200
    service.token("eve", "admin")
    assert client.delete(f"/api/v1/tokens/{mine}").status_code == 204


# Its description --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(Version(version("pydantic")) < Version("2.14"), reason="older pydantic describes less")
def test_the_description_is_the_one_in_the_documents() -> None:
    """Write it anew with `python -m autotune.service.api > docs/openapi.json`."""
    assert json.loads(Path("docs/openapi.json").read_text("utf-8")) == api.document()


def test_the_description_is_served_to_who_has_a_token(service: Service) -> None:
    assert service.client("vera", "viewer").get("/api/v1/openapi.json").json() == api.document()
    assert service.client().get("/api/v1/openapi.json").status_code == 401


def test_every_operation_describes_its_problems() -> None:
    for path, item in api.document()["paths"].items():
        for method, operation in item.items():
            assert operation["responses"]["default"]["content"].keys() == {"application/problem+json"}
            assert operation["tags"]
            assert operation["description"], (method, path)
            assert operation["operationId"].isidentifier()
    assert api.document()["servers"]
    assert "HTTPValidationError" not in api.document()["components"]["schemas"]
