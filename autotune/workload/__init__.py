"""Model and data of a training."""
