"""Speed: the fastest precision and XLA mode on this machine, and forecasts for other GPUs."""
