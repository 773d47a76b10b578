"""The record: the journal, and the tables of runs, spans, messages and events that it is moved into."""
