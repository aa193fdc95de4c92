"""An existing Trainer: taken apart, and given the answer."""
