"""Agents, operators and faults on one PostgreSQL, and a verifier that compares what is stored with a journal."""
