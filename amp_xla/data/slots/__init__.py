"""Samples of numbers and of slots with ids: what recommendation trains on."""
