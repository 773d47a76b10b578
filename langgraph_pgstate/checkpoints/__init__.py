"""Checkpoints and pending writes: their planning, storage, reading and lists."""
