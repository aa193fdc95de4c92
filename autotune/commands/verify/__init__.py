"""The answer as a plain training."""
