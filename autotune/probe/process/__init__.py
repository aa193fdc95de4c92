"""The host, its children and what they leave."""
