"""Configs, models and the user's objects."""
