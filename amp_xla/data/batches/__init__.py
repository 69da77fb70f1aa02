"""Batches of few shapes, in an order that depends only on (seed, epoch)."""
