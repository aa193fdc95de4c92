"""Facts and capabilities of the machine and its device."""
