"""LangGraph persistence on PostgreSQL."""

from langgraph_pgstate.saver import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.settings import PoolSettings, RecorderSettings, RetryPolicy, ThreadKeys
from langgraph_pgstate.state import AsyncPGState, PGState
from langgraph_pgstate.tools import ToolPolicy, ToolSettings
from langgraph_pgstate.types import PruneResult

__version__ = "0.1.0"
__all__ = [
    "AsyncPGState",
    "AsyncPGStateSaver",
    "PGState",
    "PGStateSaver",
    "PoolSettings",
    "PruneResult",
    "RecorderSettings",
    "RetryPolicy",
    "ThreadKeys",
    "ToolPolicy",
    "ToolSettings",
    "__version__",
]
