"""The savers: LangGraph's checkpointer interface on PostgreSQL, blocking and asynchronous.

Both are thin: arguments are checked and values encoded here, everything else is an operation, written once.
"""

from langgraph_pgstate.saver.aio import AsyncPGStateSaver
from langgraph_pgstate.saver.blocking import PGStateSaver
from langgraph_pgstate.saver.common import Guard

__all__ = ["AsyncPGStateSaver", "Guard", "PGStateSaver"]
