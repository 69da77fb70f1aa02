"""What mixed precision does to a graph: counted in real runs, rehearsed without a GPU."""
