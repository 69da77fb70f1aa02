"""Weights that others trained: read and checked before a model is built from them."""
