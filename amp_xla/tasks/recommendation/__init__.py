"""Click models over embedding tables: code for this task only."""
