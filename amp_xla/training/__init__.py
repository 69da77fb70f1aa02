"""The training loop, its step, checkpoints, metrics and run folder; import of recipes."""
