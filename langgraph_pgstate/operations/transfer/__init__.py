"""Copies between this package's tables and those of LangGraph's own saver."""
