"""Named entities: code for this task only."""
