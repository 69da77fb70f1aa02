"""Click models over embedding tables: what only this task needs."""
