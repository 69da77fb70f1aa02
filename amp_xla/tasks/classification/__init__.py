"""Text classification: what only this task needs."""
