"""Environment of the migrations: the connection that `open_database` hands over, in its transaction."""

from alembic import context

from autotune.service.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
