"""Measures the savers of this package against LangGraph's own, interleaved in one run: `python -m benchmarks`."""
