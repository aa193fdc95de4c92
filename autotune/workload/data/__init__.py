"""Reading, encoding and batching of data."""
