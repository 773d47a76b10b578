"""Checkpoints: plan, write, read, list, compare and upcast them."""
