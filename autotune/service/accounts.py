"""Users of the service: tokens with a role, sessions of the page, and the audit."""

import contextlib
import hmac
import re
import secrets
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, func, select

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.request import MOST_DEVICES
from autotune.service.records import Conflict
from autotune.service.tables import DatabaseAway, audit, reading, sessions, tokens, writing

log = structlog.get_logger("autotune")
RIGHTS = {
    "viewer": ("viewer",),
    "submitter": ("viewer", "submitter"),
    "admin": ("viewer", "submitter", "admin", "metrics"),
    "metrics": ("metrics",),
}
"""Role -> the roles with rights that it includes."""
PAGE_ROLES = ("admin", "submitter", "viewer")
"""Roles of people who use the page, the highest first."""
SESSION = timedelta(hours=12)
"""Lifetime of a session of the page."""
USER = r"^[A-Za-z][A-Za-z0-9_.@+-]{0,63}$"
"""The pattern of a user's name."""

SHORTEST_DAYS = 1 / 1440
"""A token of less has expired before it is used."""
FIRST_ADMIN_DAYS = 1.0
"""Lifetime of the token that the first start creates."""


@dataclass(frozen=True)
class Caller:
    """Sender of a request. most_devices: limit of devices at once; None: no limit."""

    user: str
    role: str
    token_id: str
    most_devices: int | None = None

    def may(self, role: str) -> bool:
        """True if the caller has the rights of this role."""
        return role in RIGHTS[self.role]


@dataclass(frozen=True)
class Token:
    """A token as it is listed: without its secret, which is not stored."""

    id: str
    user: str
    role: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_on: date | None
    most_devices: int | None = None


@dataclass(frozen=True)
class Entry:
    """An entry of the audit: who did what, from which address, to which search."""

    id: int
    at: datetime
    user: str | None
    token_id: str | None
    action: str
    search_id: str | None
    remote: str | None
    outcome: str


_ENTRY = [audit.c[field.name] for field in fields(Entry)]
_TOKEN = [tokens.c[field.name] for field in fields(Token)]
_CALLER = (tokens.c.user, tokens.c.role, tokens.c.id, tokens.c.most_devices)


class Accounts:
    """Tokens, sessions and the audit in the database; all methods raise StorageFailed, and may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        user: str,
        role: str,
        days: float | None,
        created_by: str,
        most_devices: int | None = None,
    ) -> tuple[Token, str]:
        """A new token and its secret, which is stored hashed only. It expires after this number of days, or never.

        most_devices: largest number of devices that its searches have at once. Raises InvalidRequest for a role that does not
        exist, and for other names and numbers that make no sense.
        """
        if role not in RIGHTS:
            raise InvalidRequest(f"There is no role {role!r}.", did_you_mean(role, RIGHTS))
        if not re.fullmatch(USER, user):
            advice = "Begin with a letter from a to z; up to 63 more, digits and . @ + - _ may follow."
            raise InvalidRequest(f"{user!r} is not a name of a user.", advice, "user")
        if days is not None and not SHORTEST_DAYS <= days <= 36500:
            raise InvalidRequest(f"A token cannot be valid for {days} days.", "Give a minute (0.0007) to 36500 days.")
        if most_devices is not None and not 0 < most_devices <= MOST_DEVICES:
            message = f"A token cannot have a limit of {most_devices} devices."
            raise InvalidRequest(message, f"Give 1 to {MOST_DEVICES}, or none.")
        with writing(self._engine) as connection:
            return _create(connection, user, role, days, created_by, most_devices)

    def tokens(self) -> list[Token]:
        """All tokens, the expired and revoked ones too, in the order in which they were created."""
        with reading(self._engine) as connection:
            return [Token(*row) for row in connection.execute(select(*_TOKEN).order_by(tokens.c.created_at))]

    def revoke(self, token_id: str) -> bool:
        """End a token and its sessions; False if there is no such valid token.

        Raises Conflict for the last valid token of an admin.
        """
        valid = (tokens.c.id == token_id) & tokens.c.revoked_at.is_(None)
        with writing(self._engine) as connection:
            admins = [*connection.scalars(select(tokens.c.id).where(tokens.c.role == "admin", *_valid()))]
            if admins == [token_id]:
                advice = (
                    "Make another admin's token first: on the page, or by `autotune token create NAME --role admin`."
                )
                raise Conflict("This is the last valid token of an admin.", advice)
            connection.execute(sessions.delete().where(sessions.c.token_id == token_id))
            change = tokens.update().where(valid).values(revoked_at=datetime.now(UTC))
            return bool(connection.execute(change).rowcount)

    def caller(self, secret: str) -> Caller | None:
        """Owner of this secret; None if it is wrong, expired or revoked."""
        parts = re.fullmatch(r"hfat_([0-9a-f]{8})_[\w-]{43}", secret, re.ASCII)
        query = select(tokens.c.secret_sha256, tokens.c.last_used_on, *_CALLER).where(*_valid())
        if parts is None:
            return None
        with reading(self._engine) as connection:
            row = connection.execute(query.where(tokens.c.id == parts[1])).one_or_none()
        if row is None or not hmac.compare_digest(row.secret_sha256, _hash(secret)):
            return None
        today = datetime.now(UTC).date()
        if row.last_used_on != today:
            with (
                contextlib.suppress(DatabaseAway),
                writing(self._engine) as connection,
            ):  # locked: the next use notes it
                connection.execute(tokens.update().where(tokens.c.id == row.id).values(last_used_on=today))
        return Caller(*row[2:])

    def is_valid(self, token_id: str) -> bool:
        """True if this token is neither expired nor revoked."""
        with reading(self._engine) as connection:
            return bool(connection.scalar(select(func.count()).where(tokens.c.id == token_id, *_valid())))

    def sign_in(self, caller: Caller) -> str:
        """The id of a new session, which is stored hashed only."""
        with writing(self._engine) as connection:
            return _begin(connection, caller)

    def sign_in_as(self, user: str, role: str, issuer: str) -> tuple[str, Caller]:
        """The same for a user whom this issuer names, and the user.

        Their token, which has no secret, is the same each time until it is revoked; it lasts as long as the last session.
        """
        with writing(self._engine) as connection:
            own = (tokens.c.user == user) & (tokens.c.created_by == issuer) & tokens.c.revoked_at.is_(None)
            if not connection.scalar(select(func.count()).where(own)):
                _create(connection, user, role, None, issuer)
            now = datetime.now(UTC)
            values = {"role": role, "expires_at": now + SESSION, "last_used_on": now.date()}
            row = connection.execute(tokens.update().where(own).values(**values).returning(*_CALLER)).one()
            found = Caller(*row)
            return _begin(connection, found), found

    def session(self, session_id: str) -> Caller | None:
        """Owner of the session of this id; None if it or its token has ended."""
        same = (sessions.c.id_sha256 == _hash(session_id)) & (sessions.c.expires_at > datetime.now(UTC))
        with reading(self._engine) as connection:
            query = select(*_CALLER).join_from(sessions, tokens).where(same, *_valid())
            row = connection.execute(query).one_or_none()
        return row and Caller(*row)

    def sign_out(self, session_id: str) -> None:
        """End a session."""
        with writing(self._engine) as connection:
            connection.execute(sessions.delete().where(sessions.c.id_sha256 == _hash(session_id)))

    def record(
        self, caller: Caller | None, action: str, outcome: str, search_id: str | None = None, remote: str | None = None
    ) -> None:
        """Write an action into the audit, with its user, address and outcome."""
        who = {"user": caller.user, "token_id": caller.token_id} if caller else {}
        values = {"at": datetime.now(UTC), "action": action, "search_id": search_id, "remote": remote}
        with writing(self._engine) as connection:
            connection.execute(audit.insert().values(**values, **who, outcome=outcome))
        log.info("audit", **who, outcome=outcome, **{name: value for name, value in values.items() if name != "at"})

    def audit(self, after: int = 0, limit: int = 500) -> list[Entry]:
        """The first entries of the audit with a greater id."""
        query = select(*_ENTRY).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
        with reading(self._engine) as connection:
            return [Entry(*row) for row in connection.execute(query)]

    def first_admin(self) -> str | None:
        """The secret of a new admin's token, which lasts `FIRST_ADMIN_DAYS`, if there was no token at all; else None."""
        with writing(self._engine) as connection:
            if connection.scalar(select(func.count()).select_from(tokens)):
                return None
            return _create(connection, "admin", "admin", FIRST_ADMIN_DAYS, "autotune serve")[1]


def _begin(connection: Connection, caller: Caller) -> str:
    session_id, now = secrets.token_urlsafe(32), datetime.now(UTC)
    values = {"id_sha256": _hash(session_id), "token_id": caller.token_id}
    connection.execute(sessions.delete().where(sessions.c.expires_at <= now))
    connection.execute(sessions.insert().values(**values, created_at=now, expires_at=now + SESSION))
    return session_id


def _create(
    connection: Connection,
    user: str,
    role: str,
    days: float | None,
    created_by: str,
    most_devices: int | None = None,
) -> tuple[Token, str]:
    now, token_id = datetime.now(UTC), secrets.token_hex(4)
    secret = f"hfat_{token_id}_{secrets.token_urlsafe(32)}"
    expires_at = now + timedelta(days=days) if days else None
    token = Token(token_id, user, role, now, created_by, expires_at, None, None, most_devices)
    connection.execute(tokens.insert().values(**vars(token), secret_sha256=_hash(secret)))
    return token, secret


def _valid() -> tuple[Any, ...]:
    return tokens.c.revoked_at.is_(None), tokens.c.expires_at.is_(None) | (tokens.c.expires_at > datetime.now(UTC))


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
