"""The first tables, those of `tables`, which a release freezes here, with an audit that is append-only in the database too."""

from alembic import op

from autotune.service.tables import metadata, server

revision = "0001"
down_revision = None

# Only entries before `server.audit_from` can be deleted. SQLite's third trigger is for INSERT OR REPLACE, which would delete
# without a trigger.
_SQLITE = """
CREATE TRIGGER audit_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_delete BEFORE DELETE ON audit WHEN NOT EXISTS (SELECT 1 FROM server WHERE OLD.at < audit_from)
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_insert BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
"""
_POSTGRESQL = """
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
    """Create tables and triggers."""
    metadata.create_all(op.get_bind())
    op.execute(server.insert().values(id=1, epoch=0))
    triggers = _SQLITE if op.get_context().dialect.name == "sqlite" else _POSTGRESQL
    for statement in triggers.split(";\n"):
        op.execute(statement)
