"""Interrupts of threads, their answers, and the resumption of what waits for them."""
