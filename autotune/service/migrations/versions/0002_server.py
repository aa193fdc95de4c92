"""The epoch of the server that has the database, and restarts of the server apart from interruptions of a search."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "CREATE TABLE server (id INTEGER NOT NULL PRIMARY KEY, epoch INTEGER NOT NULL)",
    "INSERT INTO server (id, epoch) VALUES (1, 0)",
    "ALTER TABLE searches ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX audit_at ON audit (at)",
)


def upgrade() -> None:
    """Add them."""
    for statement in STATEMENTS:
        op.execute(statement)
