"""Any request to the API: no failure of the server, answers as described, nothing touched that is not the service's."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import ignored_auth, response_schema_conformance, status_code_conformance

from autotune.service import api
from autotune.service.body import SearchBody
from autotune.service.roots import Roots
from autotune.space.settings import SETTINGS
from tests.service.application import CONFIG, SMALL, Service, make_app, serving, touched
from tests.service.test_roots import spellings

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance, ignored_auth]
DOCUMENT = schemathesis.openapi.from_dict(api.document())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address of a server that has a search in each state, and the secret of an admin; any number of wrong tokens is counted."""
    folder = tmp_path_factory.mktemp("fuzz")
    service = Service(make_app(folder, f"sqlite:///{folder / 'service.db'}", Roots()))
    service.queued()
    service.running()
    service.ended(result={"headline": "x"}, artifacts={"report.html": b"x", "trial-1.log": b"x"})
    service.app.state.failures.add = lambda address: None
    with serving(service.app) as url:
        yield url, service.token("root", "admin")


@DOCUMENT.parametrize()
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_request_is_answered_as_described(case: schemathesis.Case, server: tuple[str, str]) -> None:
    url, secret = server
    headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json"}  # a stream would not end
    case.call_and_validate(base_url=url, headers=headers, checks=CHECKS)


# Hostile bodies ---------------------------------------------------------------------------------------------------

TEXTS = (
    *("", " ", "\0", "\ud800", "\u202e", "\x1b[2J", "a" * 301, "9" * 5000, "💥" * 100, "'; DROP TABLE searches;--"),
    *("%s%n{0}{x!r}", "{{7*7}}", "${jndi:ldap://127.0.0.1/a}", "<script>alert(1)</script>", "__class__", "0x10"),
    *["nan", "inf", "-1", "1e999", "1e999GiB", "-5%", "999d", "24h", "0s", "auto", "cuda", "cuda:999", "cpu", ":"],
    "\n:",
    *("team:bert", "team:", "team:bert/config.json", "bert-mini", "default", "? ", "- " * 4000, "[" * 8000),
    *("parameters: {workers: [0]}", "parameters: &a [*a]", "a: &a [1]\nb: [*a, *a]", "core: [a]\nparameters: {a: 1}"),
    *("parameters: !!python/object/apply:os.system [ls]", "parameters: {workers: 0x1F, precision: 2001-99-99}"),
    *("parameters:\n  micro_batch_size: {multiple_of: 0}", "parameters: {1: 2, null: 3, [a]: b}"),
)
NUMBERS = (0, -1, 1, 2, 7, 200, 201, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("nan"))
PLAIN = (None, True, False, [], {}, [[]], {"": ""}, {"a": {"b": {"c": 1}}})


def value(random: Random, texts: list[str], depth: int = 3) -> Any:
    if depth and random.random() < 0.15:
        several = [value(random, texts, depth - 1) for _ in range(random.randrange(4))]
        return several if random.random() < 0.5 else dict(zip(map(str, random.sample(texts, 4)), several, strict=False))
    return random.choice((random.choice(TEXTS), random.choice(texts), random.choice(NUMBERS), random.choice(PLAIN)))


def hostile(random: Random, texts: list[str]) -> bytes:
    """A body that is nearly right, with some fields of any value, sometimes cut or with bytes changed."""
    body: Any = dict(SMALL)
    for name in random.sample([*SearchBody.model_fields], random.randint(0, 4)):
        if name in ("fix", "only", "args") and random.random() < 0.8:
            of_args = ["learning_rate", "optim", "lr_scheduler_kwargs", "output_dir", "label_names"]
            known = of_args if name == "args" else [*SETTINGS]
            body[name] = {random.choice(known): value(random, texts) for _ in range(2)}
        else:
            body[name] = value(random, texts)
    if random.random() < 0.05:
        body = random.choice((value(random, texts), [body], {random.choice(TEXTS): body}))
    content = bytearray(json.dumps(body).encode())
    if random.random() < 0.1:
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content[: random.randrange(len(content))] if random.random() < 0.03 else content)


@pytest.mark.parametrize("number", [200, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_no_body_fails_the_server_or_reaches_another_file(
    number: int, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text(json.dumps(CONFIG | {"name": "canary"}))
    roots = Roots({"team": tmp_path / "models"}, {"team": tmp_path / "models"})
    service = Service(make_app(tmp_path / "state", database_url, roots))
    texts, random, statuses = spellings(tmp_path / "outside"), Random(number), set()
    client, headers = service.client("root", "admin"), {"Content-Type": "application/json"}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "state" not in path.parts}
    with caplog.at_level(logging.WARNING), touched() as events:
        for _ in range(number):
            body = hostile(random, texts)
            dry_run = {"dry_run": random.random() < 0.5}
            answer = client.post("/api/v1/searches", content=body, headers=headers, params=dry_run)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, body
            assert "canary" not in answer.text
            if answer.status_code == 201:
                assert (
                    client.post(f"{answer.headers['location']}/cancel", content=body, headers=headers).status_code < 500
                )
                client.post(f"{answer.headers['location']}/cancel")
    assert {200, 201, 400, 422} <= statuses, "some were right and some were wrong"
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []
    assert [event for event in events if str(tmp_path / "outside") in event or "passwd" in event] == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "state" not in path.parts} == before
