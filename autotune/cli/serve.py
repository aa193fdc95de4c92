"""`autotune serve`, `autotune token` and `autotune login`: searches for a team, and access to them."""

import sys
from contextlib import ExitStack
from dataclasses import asdict
from getpass import getpass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.core.errors import AutotuneError, InvalidRequest, did_you_mean

if TYPE_CHECKING:
    from autotune.service.accounts import Token

LIBRARIES = ("fastapi", "uvicorn", "multipart", "sqlalchemy", "alembic", "structlog", "prometheus_client")
"""Packages that the server needs in addition to a search's."""

STATE = "Folder of the database and of running searches."
StateFolder = Annotated[o.Text, Option(help=STATE, metavar="PATH", show_default="~/.local/state/autotune")]
DATABASE = "URL of the database, as postgresql://user@host/autotune."
IN_STATE = "SQLite in the state folder"
Database = Annotated[
    o.Text, Option(help=DATABASE, metavar="URL", show_default=IN_STATE, envvar="AUTOTUNE_DATABASE", show_envvar=False)
]
DATA = "Folder of data, named NAME:FILE. Repeatable."
HUB = "Hugging Face hub: off, cached (no network) or online, for ids that match a --hub-pattern."
BEHIND_PROXY = "Address or network of a proxy that encrypts; its forwarded headers count. Repeatable."
ISSUER = "OpenID Connect provider to sign in with; its secret is in AUTOTUNE_OIDC_SECRET."
CLAIMS = "Claims of the ID token with the user's name and their groups."
IDENTITY = "Headers with the user's name and their groups; only a --behind-proxy's count."
ROLE = "Role of a group, or of everybody (*). Repeatable."
KEEP_DAYS = "Days to keep the audit, and events and folders of ended searches."
EXECUTOR = "Whose devices: this machine's (local), or those of a Ray cluster (ray)."
OF_CLUSTER = "Use a Ray cluster on which everyone who reaches it can run programs."
STANDBY = "Wait until no other server has the database, then take its place."
CHECK = "Check configuration, database, clock, certificate, folders and devices, and end."


def serve(
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0: a free one.")] = 8321,
    state: StateFolder = None,
    database: Database = None,
    devices: Annotated[
        o.Text, Option(help="Devices to lend.", metavar="A,B", show_default="all GPUs, else the CPU")
    ] = None,
    executor: Annotated[str, Option(help=EXECUTOR, metavar="local|ray")] = "local",
    address: Annotated[
        o.Text, Option(help="Address of the Ray cluster.", metavar="HOST:PORT", show_default="RAY_ADDRESS")
    ] = None,
    allow_unauthenticated: Annotated[bool, Option("--allow-unauthenticated", help=OF_CLUSTER)] = False,
    standby: Annotated[bool, Option("--standby", help=STANDBY)] = False,
    models: Annotated[
        o.Texts, Option(help="Folder of models, named NAME:MODEL. Repeatable.", metavar="NAME=FOLDER")
    ] = None,
    data: Annotated[o.Texts, Option(help=DATA, metavar="NAME=FOLDER")] = None,
    hub: Annotated[str, Option(help=HUB)] = "off",
    hub_pattern: Annotated[o.Texts, Option(help="Pattern of hub ids, as my-team/*. Repeatable.")] = None,
    allowed_host: Annotated[o.Texts, Option(help="Name that the server is reached by. Repeatable.")] = None,
    tls_cert: Annotated[o.Text, Option(help="File of the TLS certificate.")] = None,
    tls_key: Annotated[o.Text, Option(help="File of its key.")] = None,
    behind_proxy: Annotated[o.Texts, Option(help=BEHIND_PROXY)] = None,
    oidc_issuer: Annotated[o.Text, Option(help=ISSUER, metavar="URL")] = None,
    oidc_client: Annotated[o.Text, Option(help="Id of this server at the provider.", metavar="ID")] = None,
    oidc_scope: Annotated[str, Option(help="Scopes to ask the provider for.")] = "openid email profile",
    oidc_claims: Annotated[str, Option(help=CLAIMS, metavar="A,B")] = "email,roles",
    identity_headers: Annotated[o.Text, Option(help=IDENTITY, metavar="A,B")] = None,
    role: Annotated[o.Texts, Option(help=ROLE, metavar="GROUP=ROLE")] = None,
    keep_days: Annotated[float | None, Option(help=KEEP_DAYS, show_default="always")] = None,
    log_format: Annotated[
        o.Text, Option(help="Format of the log: json or text.", show_default="text on a terminal, else json")
    ] = None,
    check: Annotated[bool, Option("--check", help=CHECK)] = False,
    as_json: o.AsJson = False,
) -> None:
    """Serve searches to a team: a page, a REST API and a queue for the devices of this machine or of a cluster."""
    given, is_private = locals(), sys.stdout.isatty()
    options = {name: value for name, value in given.items() if name not in ("as_json", "check") and value is not None}
    with ErrorReporter(as_json) as command:
        _check_installed()
        from autotune.service.server import Settings, serve

        _check_word("hub", hub, ("off", "cached", "online"))
        _check_word("executor", executor, ("local", "ray"))
        options.setdefault("log_format", "text" if sys.stderr.isatty() else "json")
        _check_word("log format", options["log_format"], ("json", "text"))
        options |= {name: Path(options[name]) for name in ("state", "tls_cert", "tls_key") if name in options}
        options |= {name: _folders(name, options.get(name, ())) for name in ("models", "data")}
        options["hub_patterns"] = options.pop("hub_pattern", ())
        options["allowed_hosts"] = options.pop("allowed_host", ())
        options["keep"] = options.pop("keep_days", None)
        options["roles"] = dict(text.rpartition("=")[::2] for text in options.pop("role", ()))
        for name in {"devices", "oidc_claims", "identity_headers"}.intersection(options):
            options[name] = [part.strip() for part in options[name].split(",")]
        settings = Settings(**options)
        if check:
            from autotune.service.check import check as check_server
            from autotune.service.check import check_lines

            results = check_server(settings)
            found = {name: {"ok": passed, "found": text} for name, (passed, text) in results.items()}
            command.show(found, [check_lines(results)])
            if not all(passed for passed, _ in results.values()):
                raise Exit(AutotuneError.exit_code)
            return
        serve(settings, command.json if as_json else _announce, is_private)


def _announce(facts: dict[str, Any]) -> None:
    print(f"Page: {facts['url']}/\nState: {facts['state']}")
    if facts["token"]:
        print(f"Sign in with this token of the user admin, shown only now and valid for 24 h: {facts['token']}")
    if facts["token_file"]:
        print(f"Sign in with the token of the user admin in {facts['token_file']}, valid for 24 h.")
    print("Ctrl-C ends it; running searches go on at the next start.", flush=True)


def _folders(option: str, given: list[str]) -> dict[str, Path]:
    pairs = [text.partition("=") for text in given]
    if wrong := [
        text for text, (name, _, folder) in zip(given, pairs, strict=True) if not (name.isidentifier() and folder)
    ]:
        raise InvalidRequest(f"--{option} {wrong[0]!r} is not NAME=FOLDER.", f"Write --{option} team=/srv/{option}.")
    names = [name for name, _, _ in pairs]
    if several := [name for name in names if names.count(name) > 1]:
        raise InvalidRequest(f"--{option} names {several[0]} twice.", "Give each folder a name of its own.")
    return {name: Path(folder) for name, _, folder in pairs}


def _check_word(what: str, word: str, words: tuple[str, ...]) -> None:
    if word not in words:
        raise InvalidRequest(f"There is no {what} {word!r}.", did_you_mean(word, words))


def _check_installed() -> None:
    if missing := [name for name in LIBRARIES if find_spec(name) is None]:
        raise InvalidRequest(
            f"The service needs libraries that are not installed: {', '.join(missing)}.",
            "pip install 'hf-autotune[service]'",
        )


# Tokens ---------------------------------------------------------------------------------------------------------------


def token(
    action: Annotated[str, Argument(help="Action: create, list or revoke.", metavar="ACTION")],
    name: Annotated[o.Text, Argument(help="User of a new token, or id of the one to revoke.", metavar="[NAME]")] = None,
    role: Annotated[str, Option(help="Role: viewer, submitter, admin or metrics.")] = "submitter",
    days: Annotated[float | None, Option(help="Days until the token expires.", show_default="never")] = None,
    most_devices: Annotated[
        int | None, Option(help="Devices that its searches may have at once.", show_default="no limit")
    ] = None,
    state: StateFolder = None,
    database: Database = None,
    as_json: o.AsJson = False,
) -> None:
    """Create, list or revoke tokens of a server, on its machine."""
    with ErrorReporter(as_json) as command, ExitStack() as opened:
        _check_installed()
        _check_word("action", action, ("create", "list", "revoke"))
        if name is None and action != "list":
            raise InvalidRequest(f"token {action} needs a name.", f"Write autotune token {action} NAME.")
        from autotune.service.accounts import Accounts
        from autotune.service.server import Settings
        from autotune.service.tables import used_database

        place: dict[str, Any] = {"state": Path(state)} if state else {}
        settings = Settings(**place, database=database)
        engine = used_database(settings.database_url)
        opened.callback(engine.dispose)
        accounts = Accounts(engine)
        if action == "create":
            made, secret = accounts.create(name or "", role, days, "command line", most_devices=most_devices)
            shown = _plain(made) | {"secret": secret}
            lines = [f"{_line(made)}\nIts secret, shown only now: {secret}"]
        elif action == "list":
            tokens = accounts.tokens()
            shown, lines = {"tokens": [_plain(token) for token in tokens]}, [_line(token) for token in tokens]
        elif accounts.revoke(name or ""):
            shown, lines = {"revoked": name}, [f"Revoked: {name}"]
        else:
            raise InvalidRequest(f"There is no token {name!r}.", "Run `autotune token list` to see their ids.")
        command.show(shown, lines or ["No tokens."])


def _plain(token: "Token") -> dict[str, Any]:
    return {name: value and f"{value}" for name, value in asdict(token).items()}


def _line(token: "Token") -> str:
    end = f"revoked {token.revoked_at:%Y-%m-%d}" if token.revoked_at else "valid"
    if token.expires_at and not token.revoked_at:
        end = f"until {token.expires_at:%Y-%m-%d}"
    used = f", last used {token.last_used_on}" if token.last_used_on else ""
    limit = f", at most {token.most_devices} devices" if token.most_devices else ""
    return f"{token.id}  {token.user:16} {token.role:10} {end}{used}{limit}"


def login(
    url: Annotated[str, Argument(help="URL of the server, as https://tune.example.org.", metavar="URL")],
    as_json: o.AsJson = False,
) -> None:
    """Keep a token for a server: it is asked for, or read from standard input, and tried."""
    with ErrorReporter(as_json) as command:
        from autotune.service.client import connect, save_token

        secret = getpass("Token: ") if sys.stdin.isatty() else sys.stdin.readline()
        if not secret.strip():
            raise InvalidRequest("No token was given.", "Type it, or send it on standard input.")
        client = connect(url, secret.strip())
        user = client.me()
        path = save_token(client.url, secret.strip())
        line = f"Signed in at {client.url} as {user['user']} ({user['role']}); the token is kept in {path}."
        command.show({"user": user["user"], "role": user["role"], "file": str(path)}, [line])
