"""Why the answer is faster."""
