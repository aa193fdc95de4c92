"""What the machine and its device are and can do."""
