"""`autotune apply`: the answer of a study in the user's own command or config file."""
