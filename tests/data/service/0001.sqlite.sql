-- A database of the first release, as the service left it.
CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY, "user" TEXT NOT NULL, role TEXT NOT NULL, secret_sha256 TEXT NOT NULL,
    created_at DATETIME NOT NULL, created_by TEXT NOT NULL, expires_at DATETIME, revoked_at DATETIME, last_used_on DATE
);
CREATE TABLE sessions (
    id_sha256 TEXT NOT NULL PRIMARY KEY, token_id TEXT NOT NULL, form_secret TEXT NOT NULL,
    created_at DATETIME NOT NULL, expires_at DATETIME NOT NULL,
    FOREIGN KEY (token_id) REFERENCES tokens (id) ON DELETE CASCADE
);
CREATE TABLE searches (
    id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL, device TEXT NOT NULL,
    priority INTEGER NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, interruptions INTEGER NOT NULL,
    version INTEGER NOT NULL, not_before DATETIME, cancel TEXT, lent TEXT, pid INTEGER, pid_started FLOAT,
    created_at DATETIME NOT NULL, started_at DATETIME, ended_at DATETIME, idempotency_key TEXT,
    request_sha256 TEXT NOT NULL, headline TEXT, statement TEXT,
    problem JSON, progress JSON, request JSON NOT NULL, result JSON
);
CREATE UNIQUE INDEX searches_key ON searches (owner, idempotency_key);
CREATE INDEX searches_state ON searches (state, id);
CREATE INDEX searches_owner ON searches (owner, id);
CREATE TABLE events (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, search_id TEXT NOT NULL, seq INTEGER NOT NULL, "key" TEXT NOT NULL, at DATETIME NOT NULL,
    kind TEXT NOT NULL, body JSON NOT NULL, FOREIGN KEY (search_id) REFERENCES searches (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX events_seq ON events (search_id, seq);
CREATE UNIQUE INDEX events_key ON events (search_id, "key");
CREATE TABLE artifacts (
    search_id TEXT NOT NULL, name TEXT NOT NULL, media_type TEXT NOT NULL, sha256 TEXT NOT NULL,
    content BLOB NOT NULL, PRIMARY KEY (search_id, name),
    FOREIGN KEY (search_id) REFERENCES searches (id) ON DELETE CASCADE
);
CREATE TABLE audit (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, at DATETIME NOT NULL, "user" TEXT, token_id TEXT, action TEXT NOT NULL, search_id TEXT,
    remote TEXT, outcome TEXT NOT NULL
);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0001');
INSERT INTO tokens (id, "user", role, secret_sha256, created_at, created_by)
VALUES ('0a1b2c3d', 'anna', 'submitter', '4e738ca5563c06cfd0018299933d58db1dd8bf97f6973dc99bf6cdc64b5550bd', '2026-11-23 10:00:00.000000', 'root');
INSERT INTO searches (id, owner, name, model, device, priority, state, attempt, interruptions, version, created_at,
    started_at, ended_at, request_sha256, headline, request, result)
VALUES ('0193585d1a2b7c3d8e4f5a6b7c8d9e0f', 'anna', 'first', 'bert-mini', 'auto', 0, 'done', 1, 0, 5,
    '2026-11-23 10:00:01.250000', '2026-11-23 10:00:02.000000', '2026-11-23 10:01:00.000000', '00',
    '1.5 times as fast', '{"model": "bert-mini", "global_batch_size": 8}', '{"best": 3}');
INSERT INTO events (search_id, seq, "key", at, kind, body)
VALUES ('0193585d1a2b7c3d8e4f5a6b7c8d9e0f', 1, 'state:0:queued', '2026-11-23 10:00:01.250000', 'state', '{"state": "queued"}');
INSERT INTO artifacts (search_id, name, media_type, sha256, content)
VALUES ('0193585d1a2b7c3d8e4f5a6b7c8d9e0f', 'summary.md', 'text/markdown', '00', x'23');
