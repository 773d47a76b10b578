"""LangGraph persistence on PostgreSQL."""

from langgraph_pgstate import agent_server
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

# What langgraph.json calls `langgraph_pgstate.agent_server:checkpointer`, langgraph-api (0.16.7) cuts at the last dot
# and looks for under this name. It also takes `langgraph_pgstate.agent_server.checkpointer`.
globals()["agent_server:checkpointer"] = agent_server.checkpointer
