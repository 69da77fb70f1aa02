"""Named entities: what only this task needs."""
