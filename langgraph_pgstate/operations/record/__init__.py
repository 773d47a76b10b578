"""The record: the journal, and the tables of runs, spans, messages and events into which it is moved."""
