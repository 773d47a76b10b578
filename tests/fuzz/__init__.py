"""Damaged and forged bytes for everything that reads stored bytes: `make fuzz`."""
