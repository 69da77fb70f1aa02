"""Language models from raw text: what only this task needs."""
