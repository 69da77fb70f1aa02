"""Relations between entities: what only this task needs."""
