"""The page without a browser: each view in each state, its forms without JavaScript, roles, and hostile texts."""

import re
import shlex
import shutil
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from autotune.commands.result import TuningResult
from autotune.service import wording
from autotune.service.access import COOKIE
from autotune.service.records import CANCELLED, QUEUED
from tests.report.studies import HOSTILE, hostile
from tests.service.application import Service
from tests.service.seeded import REAL, WANTED, left, page_service, seed

SAME = {"Sec-Fetch-Site": "same-origin"}
FORM = {"model": "bert-mini", "global_batch_size": "8", "device": "cpu", "more": ""}


@pytest.fixture(scope="module")
def study() -> TuningResult:
    return TuningResult.load(REAL)


@pytest.fixture(scope="module")
def files(study: TuningResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return left(study, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def seeded(
    study: TuningResult, files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """A database with a search in each state, and their ids."""
    service = page_service(folder := tmp_path_factory.mktemp("seeded"))
    ids = seed(service, study, files)
    service.app.state.closing.close()
    return folder / "service.db", ids


@pytest.fixture
def service(request: pytest.FixtureRequest, migrated: Path, tmp_path: Path) -> Service:
    """Without a search, unless the test asks for their ids."""
    database = request.getfixturevalue("seeded")[0] if "ids" in request.fixturenames else migrated
    shutil.copyfile(database, tmp_path / "service.db")
    return page_service(tmp_path)


@pytest.fixture
def ids(seeded: tuple[Path, dict[str, str]], service: Service) -> dict[str, str]:
    return seeded[1]


def visitor(service: Service) -> TestClient:
    """A browser without JavaScript that nobody is signed in with."""
    client = service.client(follow_redirects=False)
    client.headers.update(SAME)
    return client


def signed_in(service: Service, user: str = "anna", role: str = "submitter") -> TestClient:
    """A browser without JavaScript that this user is signed in with."""
    client = visitor(service)
    answer = client.post("/login", data={"token": service.token(user, role), "next": "/"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    return client


def send(client: TestClient, path: str, button: str = "", page: str = "/", **fields: str) -> httpx.Response:
    """Fill in and send the form of this path on a page as a browser would, with this button (`name=value`)."""
    text = client.get(page).text
    form = re.search(rf'<form method="post" action="{re.escape(path)}".*?</form>', text, re.DOTALL)
    assert form is not None, f"no form for {path} on {page}"
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form[0])
    pressed = dict([button.split("=")]) if button else {}
    assert not button or re.search(rf'<button[^>]*name="{button.split("=")[0]}"', form[0])
    answer: httpx.Response = client.post(path, data=dict(hidden) | fields | pressed)
    return answer


def test_a_path_without_a_page_is_a_page_for_browsers(service: Service) -> None:
    for path in ("/nothing", "/searches/1/2/3"):
        page = visitor(service).get(path, headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "All searches" in page.text
        assert visitor(service).get(path).headers["content-type"] == "application/problem+json"


def views(ids: Mapping[str, str]) -> list[str]:
    found = [f"/searches/{search_id}" for search_id in ids.values()]
    forms = ["/", "/?state=running&owner=anna", "/new", f"/new?from={ids['queued']}", "/devices", "/tokens"]
    return ["/login", *forms, *found, f"/compare?search={ids['done']}&search={ids['running']}"]


# Views ----------------------------------------------------------------------------------------------------------------


def test_every_view_has_one_heading_landmarks_and_nothing_inline(service: Service, ids: dict[str, str]) -> None:
    client = signed_in(service, role="admin")
    for path in views(ids):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        text = answer.text
        assert len(re.findall("<h1[ >]", text)) == len(re.findall("<main[ >]", text)) == 1, path
        assert text.count("<table") == text.count("<caption"), path
        assert len(re.findall(r"<th ", text)) == len(re.findall(r'<th scope="(?:row|col)"', text)), path
        assert not re.search(r"<script(?! type=\"module\" src=\"/static/live\.js)|<style| style=| on\w+=", text), path
        assert not re.search(r"(?:src|href|action)=\"(?!/|#|data:,\")", text), path
        named = re.findall(r'(?:for|aria-describedby)="([^"]+)"', text)
        assert {name for names in named for name in names.split()} <= {*re.findall(r' id="([^"]+)"', text)}, path
        assert len(re.findall(r' id="([^"]+)"', text)) == len({*re.findall(r' id="([^"]+)"', text)}), path


@pytest.mark.parametrize(
    ("state", "heading", "buttons"),
    [
        ("queued", "Number 1 in the queue", ["Cancel", "Duplicate"]),
        ("fresh", "The baseline is measured first", ["Stop after this probe", "Stop now", "Duplicate"]),
        (
            "running",
            "1.23× as fast as the baseline so far, not proven",
            ["Stop after this probe", "Stop now", "Duplicate"],
        ),
        (
            "done",
            "About 1.3x as fast as the Trainer's defaults (8x6, fp32), with 8% less memory",
            ["Open the report", "Duplicate"],
        ),
        ("nothing_fits", "Nothing fits", ["Duplicate"]),
        ("failed", "The baseline crashed: mat1 and mat2", ["Resume", "Duplicate"]),
        ("cancelled", "The search was cancelled", ["Resume", "Duplicate"]),
    ],
)
def test_a_search_says_how_it_is_and_offers_what_can_be_done(
    service: Service, ids: dict[str, str], state: str, heading: str, buttons: list[str]
) -> None:
    text = signed_in(service).get(f"/searches/{ids[state]}").text
    assert words(re.search("<h1>.*?</h1>", text)[0]) == heading  # type: ignore[index]
    actions = re.search(r'<div class="actions">.*?</div>', text, re.DOTALL)
    assert re.findall(r"<(?:a|button)[^>]*>([^<]+)<", actions[0]) == buttons  # type: ignore[index]
    assert ("data-events" in text) == (state in ("queued", "fresh", "running"))


def words(html: str) -> str:
    """The text of a piece of HTML."""
    return " ".join(unescape(re.sub("<[^>]*>", "", html)).split())


def test_a_finished_search_shows_the_answer_the_trials_and_the_files(
    service: Service, study: TuningResult, ids: dict[str, str], files: dict[str, bytes]
) -> None:
    text = signed_in(service).get(f"/searches/{ids['done']}").text
    rows = [words(row) for row in re.findall(r"<tr class.*?</tr>", text, re.DOTALL)]
    numbers = [int(row.split()[0]) for row in rows]
    speeds = {trial.number: trial.samples_per_second for trial in study.trials if trial.feasible}
    assert numbers[: len(speeds)] == sorted(speeds, key=lambda number: -speeds[number])  # type: ignore[operator]
    assert numbers[len(speeds) :] == [trial.number for trial in study.trials if not trial.feasible] == [4]
    assert "out of memory" in rows[-1]
    assert "trial-4.log" in rows[-1]
    assert [row for row in rows if "answer" in row] == [rows[numbers.index(study.best.number)]]
    assert [row for row in rows if "baseline" in row] == [rows[numbers.index(0)]]
    pasted = words(re.search('<pre id="paste".*?</pre>', text, re.DOTALL)[0])  # type: ignore[index]
    for name, value in study.setup.training_arguments.items():
        assert f"{name}={value!r}," in pasted
    linked = re.findall(rf'<li><a href="/api/v1/searches/{ids["done"]}/files/([^"]+)"', text)
    assert linked == sorted(files)
    assert service.client("anna").get(f"/api/v1/searches/{ids['done']}/files/trial-4.log").status_code == 200


def test_filters_are_in_the_address_and_pages_follow_each_other(service: Service) -> None:
    made = [service.queued(("anna", "ben")[number % 2], f"search {number}").id for number in range(20)]
    made += [service.queued(f"owner{number // 15}", "more").id for number in range(45)]
    client = signed_in(service)

    def listed(path: str) -> list[str]:
        return re.findall(r'id="row-([0-9a-f]+)"', client.get(path).text)

    assert listed("/?owner=ben") == made[1:20:2][::-1]
    first = client.get("/").text
    (more,) = re.findall(r'href="([^"]+)" rel="next"', first)
    assert listed("/") + listed(unescape(more)) == made[::-1]


def test_the_same_search_is_shown_as_a_command() -> None:
    wanted = {"model": "team:it's", "global_batch_size": 8, "fix": {"precision": "bf16"}, "only": {"workers": [0, 2]}}
    wanted |= {"keep_numerics": True, "space": "quick", "args": {"seed": 1}, "name": "x y", "priority": -1}
    command, comment = wording.command_line(wanted, "https://tune").replace("\\\n", "").split("\n#")
    options = ["--global-batch-size", "8", "--fix", "precision=bf16", "--only", "workers=0,2", "--keep-numerics"]
    options += ["--search-space", "quick", "--args", "args.yaml", "--server", "https://tune"]
    assert shlex.split(command) == ["autotune", "search", "team:it's", *options]
    assert comment == ' args.yaml: {"seed": 1}'


# Without JavaScript ---------------------------------------------------------------------------------------------------


def test_signing_in_and_out(service: Service, ids: dict[str, str]) -> None:
    client = visitor(service)
    page = f"/searches/{ids['done']}"
    assert client.get(page).headers["location"] == f"/login?next={page}"
    wrong = client.post("/login", data={"token": "hfat_00000000_no", "next": page})
    assert wrong.status_code == 401
    assert "This token is not valid." in wrong.text
    answer = client.post("/login", data={"token": service.token("anna"), "next": page})
    assert answer.headers["location"] == page
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get(page).status_code == 200
    secret = client.cookies[COOKIE]
    assert send(client, "/logout").headers["location"] == "/login"
    assert client.get(page, headers={"Cookie": f"{COOKIE}={secret}"}).status_code == 303


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_signing_in_leads_nowhere_else(service: Service, place: str) -> None:
    client = visitor(service)
    answer = client.post("/login", data={"token": service.token("anna"), "next": place})
    assert answer.headers["location"] == "/"


def test_a_search_is_checked_then_started_once(service: Service) -> None:
    client = signed_in(service)
    checked = send(client, "/new", "do=check", "/new", **FORM | {"more": "fix: {precision: bf16}\nseed: 3"})
    assert checked.status_code == 200
    assert "The request is valid." in checked.text
    assert "--fix precision=bf16" in words(checked.text)
    assert service.store.count()[QUEUED] == 0
    key = re.findall(r'name="key" value="([^"]+)"', checked.text)[0]
    answers = [send(client, "/new", "do=start", "/new", **FORM | {"key": key}) for _ in range(2)]
    assert answers[0].status_code == 303
    assert answers[0].headers["location"] == answers[1].headers["location"]
    again = send(client, "/new", "do=start", "/new", **FORM | {"key": key, "global_batch_size": "16"})
    assert again.headers["location"] != answers[0].headers["location"]
    assert service.store.count()[QUEUED] == 2
    search = service.store.read(answers[0].headers["location"].rpartition("/")[2])
    assert search is not None
    assert (search.owner, search.request["global_batch_size"]) == ("anna", 8)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "no-such-model"}, "model"),
        ({"global_batch_size": "-3"}, "global_batch_size"),
        ({"n_trials": "9" * 5000}, "n_trials"),
        ({"more": "args: {output_dir: x}"}, "more"),
        ({"more": "{"}, "more"),
        ({"more": "[" * 20_000}, "more"),
        ({"more": "headroom: .nan"}, "more"),
        ({"more": "priority: 5"}, "more"),
        ({"device": "cuda:7"}, "device"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(service: Service, change: dict[str, str], field: str) -> None:
    client = signed_in(service)
    for button in ("check", "start"):
        answer = send(client, "/new", f"do={button}", "/new", **FORM | change)
        assert answer.status_code == 422
        assert re.findall(r'<li><a href="#([^"]+)"', answer.text) == [field]
        assert re.findall(r'id="error-([^"]+)"', answer.text) == [field]
        assert re.search(rf'id="{field}" name="{field}"[^>]*aria-invalid="true"', answer.text)
        for name, value in (FORM | change).items():  # what was typed is still there
            assert not value or escape(value, quote=False) in unescape(answer.text) or value in unescape(answer.text), (
                name
            )
    assert service.store.count()[QUEUED] == 0


def test_a_duplicate_is_the_same_request(service: Service, ids: dict[str, str]) -> None:
    client = signed_in(service)
    text = client.get(f"/new?from={ids['queued']}").text
    fields = {name: unescape(value) for name, value in re.findall(r'<input id="([^"]+)".*?value="([^"]*)"', text)}
    fields |= {"device": re.findall(r"<option selected>([^<]+)<", text)[-1]}
    fields |= {"more": unescape(re.search("<textarea.*?>(.*?)</textarea>", text, re.DOTALL)[1])}  # type: ignore[index]
    fields.pop("keep_numerics", None)
    answer = send(client, "/new", "do=start", "/new", **fields)
    made, first = (service.store.read(each) for each in (answer.headers["location"].rpartition("/")[2], ids["queued"]))
    assert made is not None
    assert first is not None
    assert made.request == first.request == WANTED | {"fix": {"precision": "bf16"}, "n_trials": 30}


def test_a_search_is_cancelled_and_resumed(service: Service, ids: dict[str, str]) -> None:
    client, store = signed_in(service), service.store
    page = f"/searches/{ids['running']}"
    assert send(client, f"{page}/cancel", page=page).headers["location"] == page
    assert store.read(ids["running"]).cancel == "patient"  # type: ignore[union-attr]
    text = client.get(page).text
    assert "once this probe has ended" in text
    assert "Stop after this probe" not in text
    send(client, f"{page}/cancel", "now=true", page)
    assert store.read(ids["running"]).cancel == "now"  # type: ignore[union-attr]
    send(client, f"/searches/{ids['queued']}/cancel", "now=true", f"/searches/{ids['queued']}")
    assert store.read(ids["queued"]).state == CANCELLED  # type: ignore[union-attr]
    send(client, f"/searches/{ids['queued']}/resume", page=f"/searches/{ids['queued']}")
    assert store.read(ids["queued"]).state == QUEUED  # type: ignore[union-attr]
    conflict = client.post(f"/searches/{ids['done']}/resume")
    assert conflict.status_code == 409
    assert "<h1>The search is done.</h1>" in conflict.text


def test_a_tokens_secret_is_shown_once_and_the_token_can_be_revoked(service: Service) -> None:
    client = signed_in(service, role="admin")
    answer = send(client, "/tokens", page="/tokens", user="ben", role="viewer", days="7")
    assert answer.status_code == 201
    (secret,) = re.findall(r"hfat_[0-9a-f]{8}_[\w-]{43}", answer.text)
    assert service.accounts.caller(secret).role == "viewer"  # type: ignore[union-attr]
    text = client.get("/tokens").text
    assert secret not in text
    token_id = secret.split("_")[1]
    revoke = f"/tokens/{token_id}/revoke"
    assert f'href="{revoke}"' in text
    assert "<h1>Revoke the token of ben?</h1>" in client.get(revoke).text
    assert service.accounts.caller(secret) is not None  # it was only asked
    assert send(client, revoke, page=revoke).status_code == 303
    assert service.accounts.caller(secret) is None
    assert client.get(revoke).status_code == 404
    for wrong in ({"user": "a b"}, {"role": "root"}, {"days": "soon"}, {"days": "nan"}):
        fields = {"user": "ben", "role": "viewer", "days": "7"} | wrong
        assert send(client, "/tokens", page="/tokens", **fields).status_code == 422


def test_who_revokes_the_last_admin_is_told_why_not(service: Service) -> None:
    client = signed_in(service, role="admin")
    mine = next(token.id for token in service.accounts.tokens() if token.role == "admin")
    revoke = f"/tokens/{mine}/revoke"
    assert "It is the token that you are signed in with." in client.get(revoke).text
    answer = send(client, revoke, page=revoke)
    assert answer.status_code == 409
    assert "<h1>This is the last valid token of an admin.</h1>" in answer.text


def test_finished_searches_are_compared(service: Service, study: TuningResult, ids: dict[str, str]) -> None:
    client = signed_in(service)
    both = f"/compare?search={ids['done']}&search={ids['failed']}"
    text = words(client.get(both).text)
    assert f"{study.measured_speedup:.2f}×" in text
    assert "The baseline crashed" in text
    assert "Not the same work: they differ in model" not in text
    other = service.store.submit("anna", "other", WANTED | {"global_batch_size": 16})[0].id
    assert "they differ in global batch size" in client.get(f"/compare?search={ids['done']}&search={other}").text
    for query in ("", "?search=nothing", "&".join(["?search=" + ids["done"]] * 9).replace("&?", "&")):
        assert client.get(f"/compare{query}").status_code == 422


# Who may do what ------------------------------------------------------------------------------------------------------


def test_a_viewer_sees_all_and_changes_nothing(service: Service, ids: dict[str, str]) -> None:
    client = signed_in(service, "vera", "viewer")
    for path in ("/", "/devices", *(f"/searches/{search_id}" for search_id in ids.values())):
        text = client.get(path).text
        assert re.findall(r'<form method="post" action="([^"]+)"', text) == ["/logout"], path
        assert 'href="/new' not in text
    before = service.store.list()
    for path in ("/new", f"/searches/{ids['running']}/cancel", f"/searches/{ids['failed']}/resume", "/tokens"):
        answer = client.post(path, data=FORM | {"do": "start", "user": "x", "role": "admin", "days": "1"})
        assert answer.status_code == 403, path
        assert "<h1>This needs the role" in answer.text
    assert client.get("/new").status_code == client.get("/tokens").status_code == 403
    assert service.store.list() == before


def test_others_searches_are_the_admins_alone(service: Service, ids: dict[str, str]) -> None:
    page = f"/searches/{ids['running']}"
    ben = signed_in(service, "ben")
    text = ben.get(page).text
    assert "Stop now" not in text
    assert ben.post(f"{page}/cancel").status_code == 403
    assert service.store.read(ids["running"]).cancel is None  # type: ignore[union-attr]
    assert send(signed_in(service, "root", "admin"), f"{page}/cancel", page=page).status_code == 303
    assert service.store.read(ids["running"]).cancel == "patient"  # type: ignore[union-attr]


def test_a_form_of_another_site_changes_nothing(service: Service, ids: dict[str, str]) -> None:
    client, cross = signed_in(service), {"Sec-Fetch-Site": "cross-site"}
    assert client.post(f"/searches/{ids['running']}/cancel", headers=cross).status_code == 403
    for headers in (cross, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = service.client().post("/login", data={"token": service.token("eve")}, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert service.store.read(ids["running"]).cancel is None  # type: ignore[union-attr]


def test_errors_are_pages(service: Service) -> None:
    client = signed_in(service)
    for path, status in (
        (f"/searches/{'0' * 32}", 404),
        ("/searches/x", 422),
        ("/?cursor=x", 422),
    ):
        answer = client.get(path)
        assert answer.status_code == status, path
        assert "<h1>" in answer.text, path
    for _ in range(11):
        answer = client.post("/login", data={"token": "hfat_00000000_no"})
    assert answer.status_code == 429
    assert "<h1>Too many wrong tokens" in answer.text
    assert 1 <= int(answer.headers["retry-after"]) <= 61


# Hostile texts --------------------------------------------------------------------------------------------------------


def test_names_reasons_and_logs_are_only_text(service: Service) -> None:
    study = hostile()
    ids = seed(service, study, {"trial-2.log": HOSTILE.encode(), "report.html": HOSTILE.encode()}, HOSTILE, HOSTILE)
    service.app.state.devices.cards = {"cpu": HOSTILE}
    failed = service.running(HOSTILE)
    problem = {"type": "X", "message": HOSTILE, "advice": HOSTILE}
    service.store.requeue(failed.id, failed.attempt, HOSTILE)
    failed = service.store.claim(["cpu"], 1000)  # type: ignore[assignment]
    service.store.end(failed.id, failed.attempt, "failed", headline=HOSTILE, statement=HOSTILE, problem=problem)
    client = signed_in(service, role="admin")
    quoted = (
        HOSTILE.replace("&", "%26").replace("#", "%23").replace(";", "%3B").replace("%}", "%25}").replace("{%", "{%25")
    )
    strange = [
        f"/?owner={quoted}&model={quoted}",
        f"/login?next={quoted}",
        f"/compare?search={ids['done']}",
    ]
    shown = 0
    for path in [*views(ids), f"/searches/{failed.id}", *strange]:
        text = client.get(path).text
        assert "<img src=x" not in text, path
        assert "</script><script>document" not in text, path
        assert "49" not in re.findall(r"document\.title=&#39;ran&#39;&lt;/script&gt;(.{2})", text), path
        shown += text.count(str(escape(HOSTILE)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    assert shown > 20
    answer = send(client, "/new", "do=check", "/new", **FORM | {"model": HOSTILE, "more": HOSTILE})
    assert "<img src=x" not in answer.text
    log = client.get(f"/api/v1/searches/{ids['done']}/files/trial-2.log")
    assert log.headers["content-type"].startswith("text/plain")
    report = client.get(f"/api/v1/searches/{ids['done']}/files/report.html")
    assert "sandbox allow-scripts" in report.headers["content-security-policy"]
    assert "allow-same-origin" not in report.headers["content-security-policy"]


def test_a_search_that_was_stopped_before_it_measured_anything_has_a_page(service: Service) -> None:
    nothing = {"best": None, "warnings": [], "losses": None, "sanity_check": None}
    search = service.ended("cancelled", headline="Nothing was measured.", result=nothing)
    answer = signed_in(service).get(f"/searches/{search.id}")
    assert answer.status_code == 200
    assert "What changes" not in answer.text
