"""Speed on this machine: the fastest precision and XLA mode, and the largest batch that fits."""
