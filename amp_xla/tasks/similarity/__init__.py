"""Similarity of texts: code for this task only."""
