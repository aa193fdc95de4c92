"""The loop: choose, measure, record, stop."""
