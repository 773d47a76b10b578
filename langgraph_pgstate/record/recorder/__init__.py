"""The recorder, in two halves that meet at a queue.

Capture does no I/O: `handler` has the callbacks of LangChain and LangGraph, `tracker` finds the run and the span that
each belongs to, `records` keeps both with their rows, of which `capture` and `genai` make the values, and `write_queue`
holds what is not written yet. Write: `writer` sends the queue to the database. `recorders` are the blocking and the
async recorder, which run both halves; `budgets` ends a run whose money is used up.
"""
