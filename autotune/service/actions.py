"""Searches and tokens changed by a caller, for the API and the page alike; each change is written into the audit."""

import re
from typing import Any

from fastapi import Request

from autotune.service.access import address_of
from autotune.service.accounts import Accounts, Caller, Token
from autotune.service.body import SearchBody, check_nodes, checked
from autotune.service.problems import Problem
from autotune.service.records import Search
from autotune.service.store import Store


def check(request: Request, who: Caller, body: SearchBody) -> dict[str, Any]:
    """The request that `submit` would queue. Raises InvalidRequest."""
    state = request.app.state
    wanted = checked(body, state.roots, who, state.devices.known_cards())
    if not state.devices.is_lasting:  # they are on other machines, which may lack a folder
        check_nodes(wanted, state.roots, state.devices.unreadable)
    return wanted


def submit(request: Request, who: Caller, body: SearchBody, key: str | None = None) -> tuple[Search, bool]:
    """The search, queued, and whether it is new. key: idempotency key. Raises the errors of `check` and `Store.submit`."""
    store: Store = request.app.state.store
    name = body.name or f"{body.model} {body.global_batch_size}"
    wanted = check(request, who, body)
    search, is_new = store.submit(
        who.user, name, wanted, priority=body.priority, idempotency_key=key, token_id=who.token_id
    )
    if is_new:
        _record(request, who, "submit", search.id)
    return search, is_new


def cancel(request: Request, who: Caller, search_id: str, now: bool) -> Search:
    """End a search: a queued one at once, a running one after its probe, or now."""
    store: Store = request.app.state.store
    search = store.cancel(_owned_search(request, search_id, who).id, now)
    _record(request, who, "cancel", search.id)
    return search


def resume(request: Request, who: Caller, search_id: str) -> Search:
    """Queue a cancelled or failed search again."""
    store: Store = request.app.state.store
    search = store.resume(_owned_search(request, search_id, who).id)
    _record(request, who, "resume", search.id)
    return search


def delete(request: Request, who: Caller, search_id: str) -> None:
    """Delete an ended search with its report and its folder."""
    search = _owned_search(request, search_id, who)
    request.app.state.dispatcher.delete(search.id)
    _record(request, who, "delete", search.id)


def found_search(request: Request, search_id: str) -> Search:
    """The search of this id. Raises Problem 404."""
    store: Store = request.app.state.store
    search = store.read(search_id) if re.fullmatch("[0-9a-f]{32}", search_id) else None
    if search is None:
        raise Problem(404, "There is no such search.", "Check its id: it may have been deleted.")
    return search


def _owned_search(request: Request, search_id: str, who: Caller) -> Search:
    """The search of this id, which the caller may change. Raises Problem 403, 404."""
    search = found_search(request, search_id)
    if search.owner != who.user and not who.may("admin"):
        raise Problem(403, f"The search is {search.owner}'s.", "Ask its owner or an admin.")
    return search


def create_token(
    request: Request, who: Caller, user: str, role: str, days: float | None, most_devices: int | None = None
) -> tuple[Token, str]:
    """A new token and its secret. Raises the errors of `Accounts.create`."""
    accounts: Accounts = request.app.state.accounts
    token, secret = accounts.create(user, role, days, who.user, most_devices)
    _record(request, who, f"create token {token.id}")
    return token, secret


def revoke_token(request: Request, who: Caller, token_id: str) -> None:
    """End a token and its sessions. Raises Problem 404, Conflict."""
    if not re.fullmatch("[0-9a-f]{8}", token_id) or not request.app.state.accounts.revoke(token_id):
        raise Problem(404, "There is no such token.")
    _record(request, who, f"revoke token {token_id}")


def _record(request: Request, who: Caller, action: str, search_id: str | None = None) -> None:
    accounts: Accounts = request.app.state.accounts
    accounts.record(who, action, "done", search_id, address_of(request))
