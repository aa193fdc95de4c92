"""What is shown while a search runs."""
