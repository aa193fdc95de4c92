"""What is trained: model and data."""
