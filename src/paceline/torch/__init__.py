"""PyTorch: the `paceline` backend of `torch.distributed`, and what builds on it."""
