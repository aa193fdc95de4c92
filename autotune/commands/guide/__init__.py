"""The Hugging Face guides' table, measured here."""
