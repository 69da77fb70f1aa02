"""Text generation from text: code for this task only."""
