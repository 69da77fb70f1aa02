"""Benchmarks: one file per question, run as ``./amp-xla python -m benchmarks.<file>``."""
