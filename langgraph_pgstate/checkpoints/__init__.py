"""Checkpoints: planning, storing, reading and listing them, and their writes."""
