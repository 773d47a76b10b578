"""Leases and guards: their API, the leases of this process, and the guards of a saver's writes."""
