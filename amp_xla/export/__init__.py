"""Writes trained models for other programs, after comparing their outputs with the run's."""
