"""Settings that can be varied, and what they set."""
