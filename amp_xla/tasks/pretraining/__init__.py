"""Language models from raw text: code for this task only."""
