"""A traced step, inside a child, without a device."""
