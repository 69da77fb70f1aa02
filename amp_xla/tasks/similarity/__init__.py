"""Similarity of texts: what only this task needs."""
