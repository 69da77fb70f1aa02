"""Text classification: code for this task only."""
