"""Values that every package shares, and the standard library only."""
