"""Measures the savers of this package against LangGraph's own, a process for each case: `python -m benchmarks`."""
