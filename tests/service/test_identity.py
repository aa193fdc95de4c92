"""Signing in at a real OpenID Connect provider over HTTP, what of it is refused, and users whom a proxy names."""

import base64
import hmac
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from sqlalchemy import select
from starlette.testclient import TestClient

from autotune.core.errors import InvalidRequest
from autotune.service import identity
from autotune.service.access import COOKIE, MOST_FAILURES
from autotune.service.accounts import SESSION
from autotune.service.check import check
from autotune.service.pages import ATTEMPT
from autotune.service.roots import Roots
from autotune.service.server import Settings
from autotune.service.tables import audit, metadata
from tests.service.application import URL, Service, make_app, serving

with warnings.catch_warnings():
    import authlib.deprecate  # noqa: F401 (it sets a filter)

    warnings.simplefilter("ignore")
    import oidc_provider_mock
    import werkzeug.serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the provider uses older parts of Authlib

ANNA, CLIENT, SECRET = "anna@example.com", "autotune-server", "the-secret-of-this-server"
ROLES = {"ml-team": "submitter", "operators": "admin"}
SAME = {"Sec-Fetch-Site": "same-origin"}


def same(text: str) -> str:
    return text


@dataclass
class Provider:
    """A provider that answers. forge: changes an ID token before it is sent."""

    url: str = ""
    key: RSAKey | None = None
    forge: Callable[[str], str] = same

    def knows(self, user: str = ANNA, **claims: Any) -> None:
        """The provider's user, in the group `ml-team` by default."""
        put = httpx2.put(f"{self.url}/users/{quote(user)}", json={"email": user, "roles": ["ml-team"]} | claims)
        assert put.status_code == 204


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    """The provider of `oidc-provider-mock`, which also names algorithms that are not safe."""
    import flask

    provider, app = Provider(), oidc_provider_mock.app()

    @app.after_request
    def change(response: Any) -> Any:
        if flask.request.path == "/oauth2/token" and response.status_code == 200:
            private = flask.g.oidc_provider_mock_storage.jwk.as_dict(is_private=True)
            provider.key = RSAKey.import_key(private)
            body = response.get_json()
            response.set_data(json.dumps(body | {"id_token": provider.forge(body["id_token"])}))
        if flask.request.path.startswith("/.well-known/"):
            algorithms = {"id_token_signing_alg_values_supported": ["none", "HS256", "RS256"]}
            response.set_data(json.dumps(response.get_json() | algorithms))
        return response

    server = werkzeug.serving.make_server("localhost", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    provider.url = f"http://localhost:{server.server_port}"
    yield provider
    server.shutdown()
    server.server_close()
    thread.join(30)


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.forge = same
    running.knows()
    return running


def settings(provider: Provider) -> dict[str, Any]:
    return {"oidc_issuer": provider.url, "oidc_client": CLIENT, "oidc_secret": SECRET, "roles": ROLES}


@pytest.fixture
def service(tmp_path: Path, database_url: str, provider: Provider) -> Service:
    return Service(make_app(tmp_path, database_url, Roots(), **settings(provider)))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service.app) as url:
        yield url


@pytest.fixture
def browser() -> Iterator[httpx2.Client]:
    """A browser that follows no redirection by itself."""
    with httpx2.Client(headers=SAME, verify=False) as client:
        yield client


def begin(browser: httpx2.Client, url: str, user: str = ANNA, page: str = "/") -> str:
    """The address to which the provider sends this user back."""
    sent = browser.get(f"{url}/login/provider", params={"next": page})
    assert sent.status_code == 303, sent.text
    back = httpx2.post(sent.headers["location"], data={"sub": user}, verify=False)
    assert back.status_code == 302, back.text
    return back.headers["location"]


def sign_in(browser: httpx2.Client, url: str, user: str = ANNA, page: str = "/") -> httpx2.Response:
    return browser.get(begin(browser, url, user, page))


def me(browser: httpx2.Client, url: str) -> Any:
    return browser.get(f"{url}/api/v1/me").json()


def entries(service: Service, *names: str) -> list[tuple[Any, ...]]:
    with service.app.state.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(*(audit.c[name] for name in names)))]


# Signing in and out ---------------------------------------------------------------------------------------------------


def test_a_user_signs_in_at_the_provider_and_out_again(
    browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    assert 'href="/login/provider?next=/new"' in browser.get(f"{url}/login?next=/new").text
    done = sign_in(browser, url, page="/new?from=1")
    assert (done.status_code, done.headers["refresh"]) == (200, "0; url=/new?from=1")
    cookies = {cookie.partition("=")[0]: cookie for cookie in done.headers.get_list("set-cookie")}
    assert {"HttpOnly", "SameSite=strict", f"Max-Age={int(SESSION.total_seconds())}"} <= {*cookies[COOKIE].split("; ")}
    assert "Max-Age=0" in cookies[ATTEMPT]
    assert (me(browser, url)["user"], me(browser, url)["role"]) == (ANNA, "submitter")
    assert f"{ANNA}, submitter" in browser.get(f"{url}/").text
    left = browser.post(f"{url}/logout")
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    assert browser.get(f"{url}/api/v1/me").status_code == 401
    assert entries(service, "user", "action", "outcome") == [(ANNA, "sign-in", "done")]


def test_the_next_sign_in_brings_the_role_that_the_provider_states_then(
    browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    sign_in(browser, url)
    first = me(browser, url)
    provider.knows(roles=["operators", "ml-team"])
    sign_in(browser, url)
    assert me(browser, url) == first | {"role": "admin"}, "the highest, of the same token"
    provider.knows(roles=[])
    refused = sign_in(browser, url)
    assert (refused.status_code, "has no role on this server" in refused.text) == (403, True)
    assert entries(service, "user", "outcome")[-1] == (None, "refused")


@pytest.fixture
def migrated_url(migrated: Path, tmp_path: Path) -> str:
    (tmp_path / "service.db").write_bytes(migrated.read_bytes())
    return f"sqlite:///{tmp_path}/service.db"


@pytest.mark.parametrize("claims", [{"roles": None}, {"roles": {"ml-team": 1}}, {"roles": ["admin"]}, {"email": "1 2"}])
def test_who_has_no_role_or_name_here_is_not_let_in(
    claims: dict[str, Any], browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    provider.knows(**claims)
    assert sign_in(browser, url).status_code == 403
    assert COOKIE not in browser.cookies
    assert service.accounts.tokens() == []


# What is refused ------------------------------------------------------------------------------------------------------


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims."""
    head, body = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2])
    return head, body


def plain(data: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def signed(provider: Provider, token: str, key: RSAKey | None = None, **changes: Any) -> str:
    """The token with these claims instead, signed anew; None: without the claim."""
    head, claims = parts(token)
    claims = {name: value for name, value in (claims | changes).items() if value is not None}
    return jwt.encode(head, claims, key or provider.key, ["RS256"])


def unsigned(provider: Provider, token: str) -> str:
    head, claims = parts(token)
    return f"{plain(head | {'alg': 'none'})}.{plain(claims)}."


def with_the_public_key_as_secret(provider: Provider, token: str) -> str:
    assert provider.key is not None
    head, claims = parts(token)
    text = f"{plain(head | {'alg': 'HS256'})}.{plain(claims)}"
    digest = hmac.new(provider.key.as_pem(private=False), text.encode(), sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


FORGERIES: dict[str, Callable[[Provider, str], str]] = {
    "for another client": lambda provider, token: signed(provider, token, aud="another"),
    "of another issuer": lambda provider, token: signed(provider, token, iss="https://evil.example"),
    "expired": lambda provider, token: signed(provider, token, exp=int(datetime.now(UTC).timestamp()) - 3600),
    "of another attempt": lambda provider, token: signed(provider, token, nonce="0" * 64),
    "signed by another key": lambda provider, token: signed(provider, token, RSAKey.generate_key(2048)),
    "signed with the public key as a shared secret": with_the_public_key_as_secret,
    "unsigned": unsigned,
    "of an address that is not verified": lambda provider, token: signed(provider, token, email_verified=False),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_id_token_is_refused_that_is(
    forgery: str, browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    provider.forge = lambda token: FORGERIES[forgery](provider, token)
    refused = sign_in(browser, url)
    assert (refused.status_code, "did not confirm who you are" in refused.text) == (403, True)
    assert COOKIE not in browser.cookies
    assert service.accounts.tokens() == []
    assert entries(service, "user", "action", "outcome") == [(None, "sign-in", "refused")]
    provider.forge = same
    assert sign_in(browser, url).status_code == 200


def test_a_code_is_good_only_in_the_browser_that_began_and_only_once(
    browser: httpx2.Client, url: str, provider: Provider
) -> None:
    address = begin(browser, url)
    with httpx2.Client() as victim:
        assert victim.get(address).status_code == 403, "nobody is signed in as somebody else by a link"
        victim.get(f"{url}/login/provider")
        assert victim.get(address).status_code == 403, "nor in the middle of their own sign-in"
        own = parse_qs(urlsplit(begin(victim, url)).query)["state"][0]
        stolen = parse_qs(urlsplit(address).query)["code"][0]
        injected = victim.get(f"{url}/login/done", params={"code": stolen, "state": own})
        assert injected.status_code == 403, "a code of another attempt: its nonce is another one"
    address = begin(browser, url)
    cookies = dict(browser.cookies)
    assert browser.get(address).status_code == 200
    assert httpx2.get(address, cookies=cookies).status_code == 403


@pytest.mark.parametrize("query", ["", "?error=access_denied&state=x", "?code=a&state=ä", "?code=a&state=b"])
def test_what_is_no_answer_of_the_provider_signs_nobody_in(query: str, browser: httpx2.Client, url: str) -> None:
    browser.get(f"{url}/login/provider")
    assert browser.get(f"{url}/login/done{query}").status_code == 403


def test_refused_sign_ins_of_an_address_are_limited_and_others_go_on(
    browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    statuses = [browser.get(f"{url}/login/done").status_code for _ in range(MOST_FAILURES + 2)]
    assert statuses == [403] * MOST_FAILURES + [429] * 2
    assert len(entries(service, "id")) == MOST_FAILURES
    assert sign_in(browser, url).status_code == 200


@pytest.mark.parametrize(
    "page", ["https://evil.example", "//evil.example", "/\\evil.example", "\n//evil.example", "/a\r\nX: y"]
)
def test_the_way_back_leads_to_this_server_alone(page: str, browser: httpx2.Client, url: str) -> None:
    done = sign_in(browser, url, page=page)
    assert done.headers["refresh"] in ("0; url=/", "0; url=/a%0D%0AX%3A%20y")
    assert 'href="/' in done.text
    assert "x" not in done.headers


def test_a_provider_that_is_away_or_is_another_one_is_named(
    tmp_path: Path, migrated_url: str, provider: Provider, browser: httpx2.Client
) -> None:
    for number, (issuer, message) in enumerate(
        ((f"{provider.url}/", "it calls itself"), ("http://localhost:9", "cannot be used"))
    ):
        (folder := tmp_path / f"{number}").mkdir(mode=0o700)
        database = f"sqlite:///{folder}/service.db"
        with serving(make_app(folder, database, Roots(), **settings(provider) | {"oidc_issuer": issuer})) as url:
            answer = browser.get(f"{url}/login/provider")
            assert (answer.status_code, message in answer.text) == (422, True)
            assert browser.get(f"{url}/login/done?code=a&state=b").status_code == 403
            assert browser.get(f"{url}/login").status_code == 200, "tokens are taken"


def test_the_secret_is_in_no_answer_database_or_text_of_the_settings(
    browser: httpx2.Client, url: str, provider: Provider, service: Service
) -> None:
    started = browser.get(f"{url}/login/provider")
    sign_in(browser, url)
    with service.app.state.engine.connect() as connection:
        stored = str([connection.execute(select(table)).all() for table in metadata.tables.values()])
    texts = [started.headers["location"], browser.get(f"{url}/").text, stored, repr(service.app.state.settings)]
    assert not [text for text in texts if SECRET in text]


# Settings -------------------------------------------------------------------------------------------------------------

OIDC = {"oidc_issuer": "https://id.example.org", "oidc_client": CLIENT, "roles": ROLES}
HEADERS = {"identity_headers": ("X-User", "X-Groups"), "roles": ROLES, "behind_proxy": ("10.9.8.7",)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (OIDC | {"oidc_issuer": "http://id.example.org"}, "not an https:// address"),
        (OIDC | {"oidc_issuer": "id.example.org"}, "not an https:// address"),
        (OIDC | {"oidc_client": ""}, "an id at the provider"),
        (OIDC | {"roles": {}}, "need a role"),
        (OIDC | {"roles": {"a": "metrics"}}, "need a role"),
        (OIDC | {"oidc_claims": ("email",)}, "Two names"),
        (HEADERS | {"behind_proxy": ()}, "Anybody could send"),
        (HEADERS | {"identity_headers": ("X-User",)}, "Two names"),
        (HEADERS | {"roles": {}}, "need a role"),
    ],
)
def test_settings_that_let_in_nobody_or_everybody_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Settings(**options)


def test_a_server_without_authlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "authlib.integrations.starlette_client", None)
    with pytest.raises(InvalidRequest, match=r"needs Authlib\. Run: pip install 'hf-autotune\[service,oidc\]'"):
        identity.Provider(Settings(**OIDC))


def test_the_check_of_a_configuration_asks_the_provider(provider: Provider, tmp_path: Path) -> None:
    results = check(Settings(state=tmp_path / "state", devices=("cpu",), port=0, **settings(provider)))
    assert results["sign-in"] == (True, f"tokens, {provider.url}")
    away = settings(provider) | {"oidc_issuer": "http://localhost:9"}
    assert not check(Settings(state=tmp_path / "state", devices=("cpu",), port=0, **away))["sign-in"][0]


# Headers of a proxy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def behind(tmp_path: Path, migrated_url: str) -> Callable[..., TestClient]:
    """Browsers whose requests come from this address, with these headers."""
    app = make_app(tmp_path, migrated_url, Roots(), **HEADERS)

    def client(peer: str = "10.9.8.7", user: str = "anna", groups: str = "guests, ml-team", **more: str) -> TestClient:
        headers = SAME | {"X-User": user, "X-Groups": groups} | more
        return TestClient(app, base_url=URL, client=(peer, 1), headers=headers, follow_redirects=False)

    return client


def test_the_proxy_names_who_is_signed_in(behind: Callable[..., TestClient]) -> None:
    client = behind()
    assert client.get("/new").headers["location"] == "/login?next=/new"
    assert client.get("/login?next=/new").headers["refresh"] == "0; url=/new"
    assert (client.get("/api/v1/me").json()["user"], client.get("/api/v1/me").json()["role"]) == ("anna", "submitter")
    client.headers["X-User"] = "bertha"
    assert client.get("/api/v1/me").status_code == 401, "her session is not anna's"
    client.get("/login")
    assert client.get("/api/v1/me").json()["user"] == "bertha"


@pytest.mark.parametrize("peer", ["10.9.8.8", "127.0.0.1", "::1", "::ffff:10.9.8.7", "unknown"])
def test_headers_that_name_a_user_count_from_named_addresses_alone(
    peer: str, behind: Callable[..., TestClient]
) -> None:
    for more in ({}, {"X-Forwarded-For": "10.9.8.7"}):
        client = behind(peer, "root", "operators", **more)
        page = client.get("/login")
        assert 'id="token"' in page.text
        assert COOKIE not in client.cookies


def test_a_user_without_a_role_is_refused_and_a_header_that_is_there_twice_names_nobody(
    behind: Callable[..., TestClient],
) -> None:
    assert behind(groups="guests").get("/login").status_code == 403
    assert behind(user="").get("/login").status_code == 403
    for name, value in (("X-User", "root"), ("X-Groups", "operators")):
        client = behind()
        answer = client.get("/login", headers=[*client.headers.multi_items(), (name, value)])
        assert 'id="token"' in answer.text
        assert COOKIE not in client.cookies
