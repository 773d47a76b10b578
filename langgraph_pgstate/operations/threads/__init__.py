"""Threads: search, copy, delete, prune and expire them; their branches and interrupts."""
