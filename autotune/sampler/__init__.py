"""Choice of the next measurement."""
