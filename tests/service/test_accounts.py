"""Tokens, sessions and the audit, on both databases."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Table, event, select, text
from sqlalchemy.exc import DBAPIError

from autotune.core.errors import InvalidRequest
from autotune.service.accounts import RIGHTS, SESSION, Accounts, Caller
from autotune.service.records import Conflict
from autotune.service.store import Store
from autotune.service.tables import audit, metadata, sessions, tokens


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


def test_two_tokens_of_a_user_have_their_own_secrets(accounts: Accounts) -> None:
    (first, one), (second, other) = created(accounts), created(accounts, "viewer")
    assert accounts.caller(one) == Caller("anna", "submitter", first)
    assert accounts.caller(other) == Caller("anna", "viewer", second)
    assert [token.id for token in accounts.tokens()] == [first, second]


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


def test_the_day_of_the_last_use_is_written_once_a_day(accounts: Accounts, engine: Engine) -> None:
    _, secret = created(accounts)
    writes: list[str] = []
    today = datetime.now(UTC).date()
    put(engine, tokens, last_used_on=today - timedelta(days=3))
    event.listen(engine, "before_cursor_execute", lambda c, cursor, words, *rest: writes.append(words))
    for _ in range(3):
        assert accounts.caller(secret) is not None
    assert len([words for words in writes if words.startswith("UPDATE")]) == 1
    (token,) = accounts.tokens()
    assert token.last_used_on is not None
    assert abs(token.last_used_on - today) <= timedelta(days=1)


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_has_the_rights_below_it_and_metrics_are_apart(role: str) -> None:
    caller = Caller("anna", role, "0")
    expected = {
        "viewer": {"viewer"},
        "submitter": {"viewer", "submitter"},
        "admin": {"viewer", "submitter", "admin", "metrics"},
        "metrics": {"metrics"},
    }
    assert {right for right in RIGHTS if caller.may(right)} == expected[role]


@pytest.mark.parametrize(
    ("user", "role", "days", "message"),
    [
        ("anna", "submiter", None, "Did you mean 'submitter'"),
        ("", "viewer", None, "not a name of a user"),
        ("a b", "viewer", None, "not a name of a user"),
        ("a" * 65, "viewer", None, "not a name of a user"),
        ("anna\n", "viewer", None, "not a name of a user"),
        ("аdmin", "viewer", None, "not a name of a user"),  # its first letter is Cyrillic
        *(
            (name, "viewer", None, "not a name of a user")
            for name in ("-x", "+cmd", "@sum", ".x", "_x", "1a", "größer")
        ),
        ("anna", "viewer", 0, "valid for 0 days"),
        ("anna", "viewer", -1, "valid for -1 days"),
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


def test_a_session_is_its_callers_until_it_is_signed_out(accounts: Accounts) -> None:
    token_id, secret = created(accounts)
    first, second = accounts.sign_in(accounts.caller(secret)), accounts.sign_in(accounts.caller(secret))
    assert first != second
    assert accounts.session(first) == Caller("anna", "submitter", token_id)
    accounts.sign_out(first)
    assert accounts.session(first) is None
    assert accounts.session(second) == Caller("anna", "submitter", token_id)
    assert accounts.session("") is None


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


def test_the_audit_says_who_did_what_from_where(accounts: Accounts, engine: Engine) -> None:
    accounts.record(Caller("anna", "submitter", "0a1b2c3d"), "cancel", "202", search_id="5", remote="10.0.0.7")
    accounts.record(None, "sign in", "401")
    with engine.connect() as connection:
        rows = [dict(row._mapping) for row in connection.execute(select(audit).order_by(audit.c.id))]
        assert connection.scalar(text("SELECT count(*) FROM audit")) == 2
    assert [abs(row.pop("at") - datetime.now(UTC)) < timedelta(minutes=5) for row in rows] == [True, True]
    assert [row.pop("id") for row in rows] == [1, 2]
    assert rows == [
        {
            "user": "anna",
            "token_id": "0a1b2c3d",
            "action": "cancel",
            "search_id": "5",
            "remote": "10.0.0.7",
            "outcome": "202",
        },
        {"user": None, "token_id": None, "action": "sign in", "search_id": None, "remote": None, "outcome": "401"},
    ]


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
