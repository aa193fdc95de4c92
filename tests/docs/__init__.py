"""The documentation's own tests."""
