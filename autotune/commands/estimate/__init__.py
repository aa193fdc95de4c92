"""Forecast of what a training would need, without training."""
