"""What a training would need, without training."""
