"""Several studies in one table."""
