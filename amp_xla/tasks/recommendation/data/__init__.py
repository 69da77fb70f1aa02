"""Data for recommendation: samples of numbers, and of slots that hold ids."""
