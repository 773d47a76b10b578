"""Leases, and the guards that are checked with a write."""
