"""The queue of runs and its workers."""
