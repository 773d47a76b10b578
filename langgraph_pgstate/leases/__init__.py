"""Leases, each of which gives one process the right to advance a thread, and guards, which refuse unsafe writes."""
