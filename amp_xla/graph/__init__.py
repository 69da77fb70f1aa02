"""Tools for graphs: shapes, FLOPs, counts, virtual GPU, recomputation, XLA's compiler."""
