"""Tokens, sessions and the audit, on both databases."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select, text
from sqlalchemy.exc import DBAPIError

from autotune.core.errors import InvalidRequest
from autotune.service.accounts import SESSION, Accounts, Caller
from autotune.service.records import Conflict
from autotune.service.store import Store
from autotune.service.tables import metadata, sessions, tokens


@pytest.fixture
def accounts(engine: Engine) -> Accounts:
    return Accounts(engine)


def created(accounts: Accounts, role: str = "submitter", days: float | None = None) -> tuple[str, str]:
    """Id and secret of a new token."""
    token, secret = accounts.create("anna", role, days, "root")
    return token.id, secret


def put(engine: Engine, table: Table, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(table.update().values(**values))


def test_a_token_is_listed_as_it_was_created_and_its_secret_names_it(accounts: Accounts) -> None:
    token, secret = accounts.create("anna@lab", "submitter", 90, "root")
    assert accounts.tokens() == [token]
    assert (token.user, token.role, token.created_by) == ("anna@lab", "submitter", "root")
    assert token.expires_at == token.created_at + timedelta(days=90)
    assert (token.revoked_at, token.last_used_on) == (None, None)
    prefix, token_id, letters = secret.split("_", 2)
    assert (prefix, token_id, len(letters)) == ("hfat", token.id, 43)
    assert accounts.caller(secret) == Caller("anna@lab", "submitter", token.id)


def test_no_secret_is_stored(accounts: Accounts, engine: Engine) -> None:
    _, secret = created(accounts)
    signed_in = accounts.sign_in(accounts.caller(secret))
    with engine.connect() as connection:
        stored = str([connection.execute(select(table)).all() for table in metadata.tables.values()])
    assert secret[14:] not in stored
    assert signed_in not in stored


@pytest.mark.parametrize(
    "change",
    [
        lambda secret: "",
        lambda secret: secret[:-1],
        lambda secret: secret + "A",
        lambda secret: secret + "\n",
        lambda secret: secret[:-1] + ("A" if secret[-1] != "A" else "B"),
        lambda secret: secret.upper(),
        lambda secret: secret.replace("hfat_", "hfat-"),
        lambda secret: f"hfat_00000000_{secret[14:]}",
        lambda secret: f"hfat_\0{secret[6:]}",
        lambda secret: secret[:-1] + "ä",
        lambda secret: secret[:-1] + "\ud800",
    ],
)
def test_a_wrong_secret_is_nobodys(accounts: Accounts, change: Callable[[str], str]) -> None:
    _, secret = created(accounts)
    assert accounts.caller(change(secret)) is None
    assert accounts.caller(change(secret)) is None


def test_a_revoked_token_and_its_sessions_are_over(accounts: Accounts) -> None:
    (token_id, secret), (_, other) = created(accounts), created(accounts)
    signed_in, signed_in_too = accounts.sign_in(accounts.caller(secret)), accounts.sign_in(accounts.caller(other))
    assert signed_in_too is not None
    assert accounts.revoke(token_id)
    assert accounts.caller(secret) is None
    assert accounts.session(signed_in) is None
    assert accounts.session(signed_in_too) is not None
    assert accounts.caller(other) is not None
    assert [token.revoked_at is None for token in accounts.tokens()] == [False, True]
    assert not accounts.revoke(token_id)
    assert not accounts.revoke("00000000")


def test_an_expired_token_and_its_sessions_are_over(accounts: Accounts, engine: Engine) -> None:
    _, secret = created(accounts, days=1)
    signed_in = accounts.sign_in(accounts.caller(secret))
    assert accounts.session(signed_in) is not None
    put(engine, tokens, expires_at=datetime.now(UTC))
    assert accounts.caller(secret) is None
    assert accounts.caller(secret) is None
    assert accounts.session(signed_in) is None


@pytest.mark.parametrize(
    ("user", "role", "days", "message"),
    [
        ("anna", "submiter", None, "Did you mean 'submitter'"),
        *(
            (name, "viewer", None, "not a name of a user")
            for name in ("", "a b", "a" * 65, "anna\n", "аdmin", "-x", "+cmd", "@sum", ".x", "1a", "größer")
        ),  # one begins with a Cyrillic letter
        ("anna", "viewer", 0, "valid for 0 days"),
        ("anna", "viewer", 1e-300, "valid for 1e-300 days"),
        ("anna", "viewer", float("nan"), "valid for nan days"),
        ("anna", "viewer", 1e300, "valid for 1e"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    accounts: Accounts, user: str, role: str, days: float | None, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        accounts.create(user, role, days, "root")
    assert accounts.tokens() == []


# Sessions -------------------------------------------------------------------------------------------------------


def test_a_session_ends_after_its_time_and_is_removed_at_the_next(accounts: Accounts, engine: Engine) -> None:
    _, secret = created(accounts)
    signed_in = accounts.sign_in(accounts.caller(secret))
    put(engine, sessions, expires_at=datetime.now(UTC))
    assert accounts.session(signed_in) is None
    before = datetime.now(UTC)
    accounts.sign_in(accounts.caller(secret))
    with engine.connect() as connection:
        (row,) = connection.execute(select(sessions)).all()
    assert before + SESSION <= row.expires_at <= datetime.now(UTC) + SESSION


# The first admin, and the audit ---------------------------------------------------------------------------------


def test_the_first_admin_is_made_where_there_is_no_token_at_all(accounts: Accounts) -> None:
    secret = accounts.first_admin()
    assert secret is not None
    caller = accounts.caller(secret)
    assert caller is not None
    assert (caller.user, caller.role) == ("admin", "admin")
    (token,) = accounts.tokens()
    assert token.expires_at == token.created_at + timedelta(hours=24)
    assert accounts.first_admin() is None
    accounts.create("root", "admin", None, "admin")
    assert accounts.revoke(caller.token_id)
    assert accounts.first_admin() is None


def test_the_last_valid_token_of_an_admin_cannot_be_revoked(accounts: Accounts, engine: Engine) -> None:
    (last, secret), (expired, _) = created(accounts, "admin"), created(accounts, "admin", 1)
    with engine.begin() as connection:
        over = tokens.update().where(tokens.c.id == expired).values(expires_at=datetime.now(UTC))
        connection.execute(over)
    signed_in = accounts.sign_in(accounts.caller(secret))
    with pytest.raises(Conflict, match="the last valid token of an admin"):
        accounts.revoke(last)
    assert accounts.session(signed_in) is not None
    assert accounts.revoke(expired)
    created(accounts, "admin")
    assert accounts.revoke(last)


def test_no_statement_changes_the_audit_and_only_what_is_older_than_its_retention_goes(
    accounts: Accounts, engine: Engine
) -> None:
    accounts.record(None, "first", "done")
    statements = ["UPDATE audit SET action = 'x'", "DELETE FROM audit", "DELETE FROM audit WHERE id = 1"]
    replaced = "INTO audit (id, at, action, outcome) VALUES (1, CURRENT_TIMESTAMP, 'x', 'done')"
    if engine.dialect.name == "sqlite":
        statements += [f"INSERT OR REPLACE {replaced}", f"REPLACE {replaced}"]
    else:
        statements += ["TRUNCATE audit", f"INSERT {replaced} ON CONFLICT (id) DO UPDATE SET action = 'x'"]
    for statement in statements:
        with pytest.raises(DBAPIError, match="the audit is append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    assert [entry.action for entry in accounts.audit()] == ["first"]
    Store(engine).forget(datetime.now(UTC) - timedelta(days=1))
    assert [entry.action for entry in accounts.audit()] == ["first"]
    Store(engine).forget(datetime.now(UTC))
    accounts.record(None, "second", "done")
    assert [entry.action for entry in accounts.audit()] == ["second"]
    with pytest.raises(DBAPIError, match="the audit is append-only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM audit"))
