"""`autotune serve`: searches for a team, queued, run and shown by one server."""
