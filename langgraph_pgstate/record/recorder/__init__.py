"""The recorder: callbacks that fill a queue without I/O, and a writer that sends the queue to the database.

`handler` receives callbacks of LangChain and LangGraph. `tracker` finds the run and the span of a callback. `records`
holds runs, spans and events, and makes their rows; `capture` and `genai` make the rows' values. `write_queue` holds
what is not written yet, and `writer` writes it. `recorders` has the blocking and the async recorder. `budgets` refuses
model calls once a budget is used up.
"""
