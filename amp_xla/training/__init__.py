"""The training loop, its step, checkpoints, metrics and run folder; recipes by name."""
