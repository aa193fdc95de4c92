"""The loop: propose, measure, store, confirm, stop."""
