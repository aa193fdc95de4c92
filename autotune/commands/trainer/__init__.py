"""An existing Trainer: offloaded during a search, and built again with the answer."""
