"""A real training, inside a child."""
