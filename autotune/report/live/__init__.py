"""Displays of a running search."""
