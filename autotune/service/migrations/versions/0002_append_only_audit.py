"""The audit is append-only in the database too: only entries before `server.audit_from` can be deleted."""

from alembic import op

revision = "0002"
down_revision = "0001"

# The third one is for INSERT OR REPLACE, which would delete without a trigger.
_SQLITE = """
ALTER TABLE server ADD COLUMN audit_from DATETIME;
CREATE TRIGGER audit_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_delete BEFORE DELETE ON audit WHEN NOT EXISTS (SELECT 1 FROM server WHERE OLD.at < audit_from)
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_insert BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
"""
_POSTGRESQL = """
ALTER TABLE server ADD COLUMN audit_from TIMESTAMPTZ;
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''the audit is append-only''; END';
CREATE FUNCTION audit_is_old(moment TIMESTAMPTZ) RETURNS boolean LANGUAGE sql AS
    'SELECT EXISTS (SELECT 1 FROM server WHERE moment < audit_from)';
CREATE TRIGGER audit_update BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_delete BEFORE DELETE ON audit FOR EACH ROW WHEN (NOT audit_is_old(OLD.at))
    EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_truncate BEFORE TRUNCATE ON audit EXECUTE FUNCTION audit_is_append_only()
"""


def upgrade() -> None:
    """Add the column and the triggers."""
    statements = _SQLITE if op.get_context().dialect.name == "sqlite" else _POSTGRESQL
    for statement in statements.split(";\n"):
        op.execute(statement)
