"""Data for recommendation: samples of numbers and slots, where a slot holds ids."""
