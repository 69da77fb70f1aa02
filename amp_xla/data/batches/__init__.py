"""Samples to batches of few shapes, in an order that follows from (seed, epoch)."""
