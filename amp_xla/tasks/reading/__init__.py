"""Answers to questions as spans of a passage: what only this task needs."""
