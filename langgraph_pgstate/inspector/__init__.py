"""The inspector: pages about threads, runs and what belongs to them, below `/ui` of the server."""
