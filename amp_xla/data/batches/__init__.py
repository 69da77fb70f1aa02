"""Samples to batches of few shapes, in an order by counter."""
