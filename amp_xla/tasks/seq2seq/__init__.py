"""Text generation from text: what only this task needs."""
