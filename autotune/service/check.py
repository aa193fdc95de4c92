"""Check of a server's configuration without starting it: `autotune serve --check`."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import sqlalchemy as sa

from autotune.core.errors import AutotuneError, InvalidRequest, StorageFailed
from autotune.core.units import format_bytes
from autotune.service.identity import Provider
from autotune.service.operation import LEAST_FREE_BYTES
from autotune.service.server import Settings, lent_devices, listening, tls_of
from autotune.service.tables import connect_database, events, reading, revisions

SKEW_S = 5.0
"""Seconds by which clocks may differ."""

SOON_DAYS = 14
"""Days before the end of a certificate from which on it is a problem."""


def check(settings: Settings) -> dict[str, tuple[bool, str]]:
    """Name of each check -> (it passed, what was found). Nothing is created, migrated or taken from a running server."""
    checks: dict[str, Callable[[Settings], str]] = {
        "state folder": _state,
        "folders": _folders,
        "database": _database,
        "certificate": _certificate,
        "address": _address,
        "sign-in": _sign_in,
        "devices": _devices,
    }
    results = {}
    for name, each in checks.items():
        try:
            results[name] = (True, each(settings))
        except (AutotuneError, OSError) as error:
            results[name] = (False, str(error))
    return results


def _state(settings: Settings) -> str:
    nearest = next(path for path in (settings.state, *settings.state.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageFailed(f"{nearest} cannot be written.", "Name another --state, or run as its user.")
    if (free := shutil.disk_usage(nearest).free) < LEAST_FREE_BYTES:
        raise StorageFailed(f"{nearest} has {format_bytes(free)} left.", f"It needs {format_bytes(LEAST_FREE_BYTES)}.")
    return f"{settings.state}, {format_bytes(free)} free" + (
        "" if nearest == settings.state else "; the first start makes it"
    )


def _folders(settings: Settings) -> str:
    folders = [*settings.models.values(), *settings.data.values()]
    if closed := [f"{folder}" for folder in folders if not os.access(folder, os.R_OK | os.X_OK)]:
        raise InvalidRequest(f"{', '.join(closed)} cannot be read.", "Let the server's user read it.")
    return f"{len(folders)} of models and data can be read"


def _database(settings: Settings) -> str:
    if settings.database is None and not (settings.state / "service.db").exists():
        return "the first start makes it"
    engine = connect_database(settings.database_url, create=False)
    try:
        revision, head, is_older = revisions(engine)
        if revision is not None and not is_older:
            raise StorageFailed(f"{engine.url} has revision {revision} of a newer version.", "Install that version.")
        with reading(engine) as connection:
            _check_clock(connection, revision is not None)
    finally:
        engine.dispose()
    if revision == head:
        return f"{engine.url}, revision {revision}" + ("; a server holds it" if _is_held(settings) else "")
    return f"{engine.url}, revision {revision or 'none'}; the next start migrates it to {head}: back it up first"


def _check_clock(connection: sa.Connection, has_events: bool) -> None:
    here, there = datetime.now(UTC), connection.scalar(sa.select(sa.func.current_timestamp()))
    there = there.replace(tzinfo=UTC) if there.tzinfo is None else there  # of SQLite
    if (seconds := abs((there - here).total_seconds())) > SKEW_S:
        raise InvalidRequest(f"The clock differs by {seconds:.0f} s from the database's.", "Let NTP set both.")
    last = connection.scalar(sa.select(sa.func.max(events.c.at))) if has_events else None
    if last and (last - here).total_seconds() > SKEW_S:
        raise InvalidRequest(f"The last event is in the future: {last:%Y-%m-%d %H:%M:%S} UTC.", "Set the clock.")


def _is_held(settings: Settings) -> bool:
    """True if a server holds the state folder."""
    with contextlib.suppress(OSError), (settings.state / "serve.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _certificate(settings: Settings) -> str:
    if settings.tls_cert is None:
        return "none: " + ("a proxy encrypts" if settings.behind_proxy else "the loopback only")
    tls_of(settings)
    facts = ssl._ssl._test_decode_cert(os.fspath(settings.tls_cert))  # type: ignore[attr-defined]  # ssl has no other reader
    days = (ssl.cert_time_to_seconds(facts["notAfter"]) - time.time()) / 86400
    if days < SOON_DAYS:
        when = f"in {days:.0f} days" if days > 0 else f"{-days:.0f} days ago"
        raise InvalidRequest(f"{settings.tls_cert} ends {when}.", "Renew it; the server reads it when it starts.")
    return f"{settings.tls_cert}, valid for {days:.0f} days"


def _address(settings: Settings) -> str:
    try:
        listening(settings).close()
    except InvalidRequest as error:
        if "is in use" in error.message and _is_held(settings):
            return f"{settings.url(settings.port)}, of the server that runs"
        raise
    return settings.url(settings.port)


def _sign_in(settings: Settings) -> str:
    if settings.oidc_issuer:
        asyncio.run(Provider(settings).check())
    return f"tokens{f', {settings.oidc_issuer}' if settings.oidc_issuer else ''}"


def _devices(settings: Settings) -> str:
    devices = lent_devices(replace(settings, standby=False))  # a standby does not wait for its cluster
    devices.close()
    if problem := devices.problem():
        raise InvalidRequest(f"{problem}.", "Name some with --devices.")
    return ", ".join(f"{name} ({devices.cards[name]})" for name in devices.names)


def check_lines(results: dict[str, tuple[bool, str]]) -> str:
    """The checks, a line each."""
    return "\n".join(f"{'ok' if passed else 'WRONG':6}{name:14}{text}" for name, (passed, text) in results.items())
