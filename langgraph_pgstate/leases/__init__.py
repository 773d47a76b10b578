"""Leases and guards: their API, the leases this process holds, and what they mean for a saver's writes."""
