"""Leases and the guards of writes."""
