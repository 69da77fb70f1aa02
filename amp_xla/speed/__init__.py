"""XLA that pays: what it compiles and why, which mode is fastest here, what fits in memory."""
