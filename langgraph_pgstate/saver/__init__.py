"""The savers: LangGraph's checkpointer interface on PostgreSQL, blocking and async.

Both check arguments and encode values; everything else is an operation, written once.
"""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.saver.aio import AsyncPGStateSaver
    from langgraph_pgstate.saver.blocking import PGStateSaver
    from langgraph_pgstate.settings import Guard
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncPGStateSaver": "langgraph_pgstate.saver.aio",
            "Guard": "langgraph_pgstate.settings",
            "PGStateSaver": "langgraph_pgstate.saver.blocking",
        },
    )

__all__ = ["AsyncPGStateSaver", "Guard", "PGStateSaver"]
