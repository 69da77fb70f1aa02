"""Question answering, with spans of a passage as answers: code for this task only."""
