"""Relations between entities: code for this task only."""
