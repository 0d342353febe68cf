"""Tensors as integers that switches can add: blocks, exact sums, exponents, layouts."""
