"""Users whom others vouch for: an OpenID Connect provider, or a reverse proxy in its headers.

browser ── /login/provider ──> provider ── /login/done, with a code ──> this server ── code ──> provider
                                                                             <── signed ID token ──┘
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import structlog
from fastapi import Request

from autotune.core.errors import InvalidRequest

Named = tuple[str, list[str]]
"""Name and groups of a user."""
PROXY = "the proxy"
"""Issuer of a user whom the proxy names: it is not the name of a user."""
TIMEOUT_S = 10.0
_SIGNED, _SIGNATURES = "id_token_signing_alg_values_supported", ("RS", "PS", "ES", "Ed")
"""Field of the discovery document, and beginnings of algorithms with a public key: not `none`, and no shared secret."""
log = structlog.get_logger("autotune")


class Provider:
    """The OpenID Connect provider of these settings, by its discovery document: authorization code flow with PKCE.

    Raises InvalidRequest without Authlib.

    A browser that signs in keeps a random secret, the attempt. State, nonce and code verifier are derived from it, so
    that a code or an ID token of another attempt is refused.
    """

    def __init__(self, settings: Any) -> None:
        try:
            from authlib.integrations.starlette_client import OAuth
        except ImportError as error:
            advice = "Run: pip install 'hf-autotune[service,oidc]'"
            raise InvalidRequest("Signing in with OpenID Connect needs Authlib.", advice) from error

        self.issuer, self._claims = settings.oidc_issuer, settings.oidc_claims
        self._client = OAuth().register(
            "oidc",
            client_id=settings.oidc_client,
            client_secret=settings.oidc_secret or None,
            server_metadata_url=f"{self.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": settings.oidc_scope, "code_challenge_method": "S256", "timeout": TIMEOUT_S},
        )

    async def check(self) -> None:
        """Read the discovery document once. Raises InvalidRequest if there is none, or it is another provider's."""
        import httpx2

        try:
            facts = await self._client.load_server_metadata()
            if facts.get("issuer") != self.issuer:
                raise ValueError(f"it calls itself {facts.get('issuer')!r}")
        except (httpx2.HTTPError, ValueError) as error:
            message = f"The OpenID Connect provider {self.issuer} cannot be used: {error or type(error).__name__}."
            raise InvalidRequest(message, "Check --oidc-issuer, and that this machine reaches it.") from error
        facts[_SIGNED] = [name for name in facts.get(_SIGNED, ()) if name.startswith(_SIGNATURES)]

    async def url(self, callback: str, attempt: str) -> str:
        """Address at which the provider asks who the user is; it sends back to callback. Raises InvalidRequest."""
        await self.check()
        values = {name: _derived(attempt, name) for name in ("state", "nonce", "code_verifier")}
        return str((await self._client.create_authorization_url(callback, **values))["url"])

    async def user(self, callback: str, attempt: str, code: str, state: str) -> Named | None:
        """The user whom the provider's ID token for this code names; None if it confirms nobody."""
        wanted = {"iss": {"essential": True, "value": self.issuer}}
        wanted["aud"] = {"essential": True, "value": self._client.client_id}
        try:
            await self.check()
            if not attempt or not hmac.compare_digest(state.encode(), _derived(attempt, "state").encode()):
                raise ValueError("the browser has not begun this")
            verifier = _derived(attempt, "code_verifier")
            token = await self._client.fetch_access_token(callback, code=code, code_verifier=verifier)
            claims = await self._client.parse_id_token(token, _derived(attempt, "nonce"), wanted)
            if self._claims[0] == "email" and claims.get("email_verified") in (False, "false"):
                raise ValueError("the address is not verified")
        except Exception as error:  # of whatever a provider sends: nobody is signed in
            log.warning("sign_in_refused", error=f"{type(error).__name__}: {error}")
            return None
        name, groups = (_claim(claims, path) for path in self._claims)
        return f"{name or ''}", [f"{group}" for group in (groups if isinstance(groups, list) else [groups])]


def _derived(attempt: str, what: str) -> str:
    return sha256(f"{what} {attempt}".encode()).hexdigest()


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name; dots lead into nested ones."""
    value: Any = claims
    for part in [path] if path in claims else path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def proxy_user(request: Request) -> Named | None:
    """The user whom the proxy names in its headers; None if it names nobody. Nobody else's headers get here."""
    given = [request.headers.getlist(name) for name in request.app.state.settings.identity_headers]
    if [*map(len, given)] not in ([1, 0], [1, 1]):  # a header that is there twice may be the browser's
        return None
    return given[0][0], [group.strip() for text in given[1] for group in text.split(",")]
