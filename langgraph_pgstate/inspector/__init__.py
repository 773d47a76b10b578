"""The inspector: pages about threads, runs and related data, below `/ui` of the server."""
