"""Trained models written for other programs, and compared with the run before they count."""
