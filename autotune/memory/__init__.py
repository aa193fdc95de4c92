"""Memory that a configuration needs, from a trace to its peak."""
