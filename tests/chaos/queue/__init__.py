"""Runs in the queue: workers and callers in a storm, and a verifier of what became of every run."""
