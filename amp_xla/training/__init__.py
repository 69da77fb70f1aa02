"""The training loop and what belongs to it: step, checkpoints, metrics, progress, run folder."""
