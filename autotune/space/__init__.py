"""What can be varied, and what it sets."""
