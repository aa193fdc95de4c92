"""Configs, models and the user's own objects."""
