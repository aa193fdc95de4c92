"""The first tables."""

from alembic import op

revision = "0001"
down_revision = None

# Long columns are last: who lists searches does not read the pages that these spill over to.
# SQLite does not use an id of AUTOINCREMENT again, whatever is deleted.
TABLES = """
CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY, "user" TEXT NOT NULL, role TEXT NOT NULL, secret_sha256 TEXT NOT NULL,
    created_at {stamp} NOT NULL, created_by TEXT NOT NULL, expires_at {stamp}, revoked_at {stamp}, last_used_on DATE,
    most_devices INTEGER, hours_a_month FLOAT
);
CREATE TABLE sessions (
    id_sha256 TEXT NOT NULL PRIMARY KEY, token_id TEXT NOT NULL, form_secret TEXT NOT NULL,
    created_at {stamp} NOT NULL, expires_at {stamp} NOT NULL,
    FOREIGN KEY (token_id) REFERENCES tokens (id) ON DELETE CASCADE
);
CREATE TABLE searches (
    id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL, device TEXT NOT NULL,
    priority INTEGER NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, interruptions INTEGER NOT NULL,
    restarts INTEGER NOT NULL, version INTEGER NOT NULL, not_before {stamp}, cancel TEXT, lent TEXT,
    pid INTEGER, pid_started FLOAT, token_id TEXT, ends_at {stamp},
    created_at {stamp} NOT NULL, started_at {stamp}, ended_at {stamp}, idempotency_key TEXT,
    request_sha256 TEXT NOT NULL, headline TEXT, statement TEXT,
    problem JSON, progress JSON, request JSON NOT NULL, result JSON
);
CREATE UNIQUE INDEX searches_key ON searches (owner, idempotency_key);
CREATE INDEX searches_state ON searches (state, id);
CREATE INDEX searches_owner ON searches (owner, id);
CREATE TABLE events (
    id {number}, search_id TEXT NOT NULL, seq INTEGER NOT NULL, "key" TEXT NOT NULL, at {stamp} NOT NULL,
    kind TEXT NOT NULL, body JSON NOT NULL, FOREIGN KEY (search_id) REFERENCES searches (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX events_seq ON events (search_id, seq);
CREATE UNIQUE INDEX events_key ON events (search_id, "key");
CREATE TABLE artifacts (
    search_id TEXT NOT NULL, name TEXT NOT NULL, media_type TEXT NOT NULL, sha256 TEXT NOT NULL,
    content {content} NOT NULL, PRIMARY KEY (search_id, name),
    FOREIGN KEY (search_id) REFERENCES searches (id) ON DELETE CASCADE
);
CREATE TABLE audit (
    id {number}, at {stamp} NOT NULL, "user" TEXT, token_id TEXT, action TEXT NOT NULL, search_id TEXT,
    remote TEXT, outcome TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);
CREATE TABLE uses (
    id {number}, search_id TEXT NOT NULL, "user" TEXT NOT NULL, token_id TEXT, devices INTEGER NOT NULL,
    started_at {stamp} NOT NULL, ended_at {stamp}
);
CREATE INDEX uses_search ON uses (search_id);
CREATE INDEX uses_ended_at ON uses (ended_at);
CREATE TABLE server (id INTEGER NOT NULL PRIMARY KEY, epoch INTEGER NOT NULL);
INSERT INTO server (id, epoch) VALUES (1, 0)
"""

_SQLITE = {"stamp": "DATETIME", "number": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "content": "BLOB"}
_POSTGRESQL = {"stamp": "TIMESTAMPTZ", "number": "SERIAL PRIMARY KEY", "content": "BYTEA"}


def upgrade() -> None:
    """Create them."""
    kinds = _SQLITE if op.get_context().dialect.name == "sqlite" else _POSTGRESQL
    for statement in TABLES.format(**kinds).split(";"):
        op.execute(statement)
