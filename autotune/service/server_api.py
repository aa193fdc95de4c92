"""REST under /api/v1: this server's devices, spaces, models and tokens."""

from fastapi import Request

from autotune.service import actions
from autotune.service.accounts import Caller, Entry, Token
from autotune.service.devices import JOIN
from autotune.service.responses import (
    Admin,
    After,
    Limit,
    Names,
    NewToken,
    SecretToken,
    Viewer,
    routes,
)
from autotune.service.stream import MOST_EVENTS
from autotune.space.file import named_spaces, open_space
from autotune.workload.model.builtin import BUILT_IN

router = routes()


@router.get("/devices")
def devices(request: Request, _who: Viewer) -> list[dict[str, str | None]]:
    """Devices that this server lends, and the search on each."""
    state = request.app.state
    lent = {name: search.id for search in state.store.running() for name in (search.lent or "").split(JOIN)}
    names, cards = state.devices.names, state.devices.cards
    return [{"name": name, "card": cards[name], "search": lent.get(name)} for name in names]


@router.get("/spaces")
def spaces(_who: Viewer) -> list[dict[str, str]]:
    """Search spaces that a request may name."""
    return [{"name": name, "description": open_space(name).description} for name in named_spaces()]


@router.get("/models")
def models(request: Request, _who: Viewer) -> Names:
    """Models and data that a request may name."""
    roots = request.app.state.roots
    built_in = {name: model.description for name, model in BUILT_IN.items()}
    below = {kind: roots.names(kind) for kind in ("models", "data")}
    return Names(built_in=built_in, hub=roots.hub, hub_patterns=list(roots.hub_patterns), **below)


@router.get("/me")
def me(who: Viewer) -> Caller:
    """Whose token this is."""
    return who


@router.get("/audit")
def audit(request: Request, _who: Admin, after: After = None, limit: Limit = MOST_EVENTS) -> list[Entry]:
    """Entries of the audit after the given one: who did what."""
    found: list[Entry] = request.app.state.accounts.audit(after or 0, limit)
    return found


@router.get("/tokens")
def tokens(request: Request, _who: Admin) -> list[Token]:
    """All tokens, without their secrets."""
    found: list[Token] = request.app.state.accounts.tokens()
    return found


@router.post("/tokens", status_code=201)
def create_token(request: Request, who: Admin, body: NewToken) -> SecretToken:
    """A new token; its secret is in this response alone."""
    token, secret = actions.create_token(request, who, body.user, body.role, body.days, body.most_devices)
    return SecretToken(token=token, secret=secret)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(request: Request, who: Admin, token_id: str) -> None:
    """End a token and its sessions."""
    actions.revoke_token(request, who, token_id)
