"""Streams of events over a real connection: without gaps and doubles, ended where the search has ended, limited."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from autotune.service import stream
from autotune.service.records import Search
from autotune.service.roots import Roots
from tests.service.application import Service, make_app, serving, wait_until

Item = tuple[str, str, dict[str, Any]]
"""Number, kind, data."""


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Service:
    return Service(make_app(tmp_path, database_url, Roots()))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service.app) as url:
        yield url


@contextmanager
def opened(url: str, path: str, secret: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {secret}", **headers})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def items(answer: http.client.HTTPResponse) -> Iterator[Item]:
    """The events of a stream as they come; comments are left out."""
    fields: dict[str, str] = {}
    for line in iter(answer.readline, b""):
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def add(service: Service, search: Search, *numbers: int) -> None:
    for number in numbers:
        event = {"key": f"trial:{number}", "kind": "trial", "body": {"number": number}}
        assert service.store.add_events(search.id, search.attempt, [event]) == 1


def trials(found: list[Item]) -> list[int]:
    return [data["number"] for _, kind, data in found if kind == "trial"]


def test_a_stream_has_what_was_and_what_comes_and_ends_with_the_search(service: Service, url: str) -> None:
    search, secret = service.running(), service.token("vera", "viewer")
    add(service, search, 0, 1)
    with opened(url, f"/searches/{search.id}/events", secret) as answer:
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        assert (answer.getheader("x-accel-buffering"), answer.getheader("cache-control")) == ("no", "no-store")
        assert answer.readline() == b"retry: 2000\n"
        found = items(answer)
        first = [next(found) for _ in range(4)]
        add(service, search, 2)
        service.store.end(search.id, search.attempt, "done", headline="Fast.")
        rest = list(found)
    assert [kind for _, kind, _ in first] == ["state", "state", "trial", "trial"]
    assert trials(first + rest) == [0, 1, 2]
    assert [int(number) for number, _, _ in first + rest] == list(range(1, 7))
    assert rest[-1][2] == {"search": search.id, "state": "done", "attempt": 1, "headline": "Fast."}


def test_a_stream_that_is_opened_again_goes_on_after_the_last_event(service: Service, url: str) -> None:
    search, secret = service.running(), service.token("vera", "viewer")
    path = f"/searches/{search.id}/events"
    seen: list[Item] = []
    for number in range(5):
        add(service, search, number)
        last = {"Last-Event-ID": seen[-1][0]} if seen else {}
        with opened(url, path, secret, **last) as answer:
            for item in items(answer):
                seen.append(item)
                if trials(seen)[-1:] == [number]:
                    break
    assert trials(seen) == [0, 1, 2, 3, 4]
    service.store.end(search.id, search.attempt, "failed")
    with opened(url, path, secret, **{"Last-Event-ID": seen[-1][0]}) as answer:
        seen += items(answer)
    assert [int(number) for number, _, _ in seen] == list(range(1, len(seen) + 1))
    with opened(url, path, secret, **{"Last-Event-ID": seen[-1][0]}) as answer:
        assert answer.status == 204, "the browser stops here"
    with opened(url, f"{path}?after=2", secret) as answer:
        assert [int(number) for number, _, _ in items(answer)] == list(range(3, len(seen) + 1))


def test_a_stream_of_an_ended_search_without_events_ends(service: Service, url: str) -> None:
    """They were deleted after so many days."""
    search, secret = service.ended(), service.token("vera", "viewer")
    service.store.forget(search.ended_at.replace(year=search.ended_at.year + 1))
    with opened(url, f"/searches/{search.id}/events", secret) as answer:
        assert list(items(answer)) == []


def test_the_stream_of_all_searches_begins_with_what_changes_next(service: Service, url: str) -> None:
    old, secret = service.ended(), service.token("vera", "viewer")
    with opened(url, "/events", secret) as answer:
        found = items(answer)
        assert answer.readline() == b"retry: 2000\n"
        search = service.running("bertha")
        add(service, search, 0)
        service.store.end(search.id, search.attempt, "cancelled")
        changes = [next(found) for _ in range(3)]
    assert [(data["search"], data["state"]) for _, _, data in changes] == [
        (search.id, state) for state in ("queued", "running", "cancelled")
    ]
    with opened(url, "/events?after=0", secret) as answer:
        assert next(items(answer))[2]["search"] == old.id
    with opened(url, "/events", secret, **{"Last-Event-ID": changes[1][0]}) as answer:
        assert next(items(answer)) == changes[2]


def test_a_stream_ends_once_its_token_is_revoked(service: Service, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_S", 0.05)
    search, secret = service.running(), service.token("vera", "viewer")
    with opened(url, f"/searches/{search.id}/events", secret) as answer:
        assert answer.readline() == b"retry: 2000\n"
        assert service.app.state.accounts.revoke(secret.split("_")[1])
        kinds = [kind for _, kind, _ in items(answer)]
    assert kinds == ["state", "state"]


def test_many_readers_get_every_event_in_its_order(service: Service, url: str) -> None:
    search = service.running()
    secrets = [service.token(f"reader-{number}", "viewer") for number in range(12)]

    def read(secret: str) -> list[int]:
        with opened(url, f"/searches/{search.id}/events", secret) as answer:
            return trials(list(items(answer)))

    with ThreadPoolExecutor(len(secrets)) as pool:
        readers = [pool.submit(read, secret) for secret in secrets]
        wait_until(lambda: service.app.state.hub.streams == len(secrets))
        add(service, search, *range(30))
        service.store.end(search.id, search.attempt, "done")
        assert [reader.result(60) for reader in readers] == [list(range(30))] * len(secrets)


def test_a_silent_stream_sends_comments(service: Service, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_S", 0.05)
    with opened(url, "/events", service.token("vera", "viewer")) as answer:
        lines = [answer.readline() for _ in range(6)]
    assert lines == [b"retry: 2000\n", b"\n", b": ping\n", b"\n", b": ping\n", b"\n"]


def test_so_many_streams_are_open_and_closed_ones_do_not_count(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_OF_TOKEN", 3)
    monkeypatch.setattr(stream, "MOST", 5)
    anna, bertha = service.token("anna", "viewer"), service.token("bertha", "viewer")

    def status(secret: str) -> int:
        with opened(url, "/events", secret) as answer:
            return answer.status

    with opened(url, "/events", anna), opened(url, "/events", anna), opened(url, "/events", anna):
        assert status(anna) == 429
        with opened(url, "/events", bertha), opened(url, "/events", bertha):
            assert status(bertha) == 429
        wait_until(lambda: service.app.state.hub.streams == 3)
    wait_until(lambda: service.app.state.hub.streams == 0)
    assert status(anna) == 200


def test_a_server_that_stops_ends_its_streams(service: Service) -> None:
    with serving(service.app) as url, opened(url, "/events", service.token("vera", "viewer")) as answer:
        assert answer.readline()
        service.app.state.hub.close()
        assert answer.read() == b"\n"
