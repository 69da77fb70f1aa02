"""Benchmarks: one file per question, run as ``python -m benchmarks.<file>``."""
