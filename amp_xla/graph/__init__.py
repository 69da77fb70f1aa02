"""Graphs read and rewritten: shapes, FLOPs, counts, virtual GPU, recomputation, XLA's compiler."""
