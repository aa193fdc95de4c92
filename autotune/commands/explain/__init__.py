"""Explanation why the answer is faster."""
