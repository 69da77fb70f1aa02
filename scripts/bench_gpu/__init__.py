"""``make bench-gpu``: this project's precisions and XLA modes beside PyTorch, on one GPU."""
