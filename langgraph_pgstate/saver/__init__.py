"""The savers: LangGraph's checkpointer interface on PostgreSQL, blocking and async."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.options import Guard
    from langgraph_pgstate.saver.aio import AsyncPGStateSaver
    from langgraph_pgstate.saver.blocking import PGStateSaver
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncPGStateSaver": "langgraph_pgstate.saver.aio",
            "Guard": "langgraph_pgstate.options",
            "PGStateSaver": "langgraph_pgstate.saver.blocking",
        },
    )

__all__ = ["AsyncPGStateSaver", "Guard", "PGStateSaver"]
