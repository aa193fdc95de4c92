"""Judge: what measurements say: which configuration is the answer, how much faster it is, and what is barred."""
