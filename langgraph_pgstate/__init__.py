"""LangGraph persistence on PostgreSQL."""

from langgraph_pgstate.saver import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.settings import PoolSettings, RetryPolicy
from langgraph_pgstate.types import PruneResult

__version__ = "0.1.0"
__all__ = ["AsyncPGStateSaver", "PGStateSaver", "PoolSettings", "PruneResult", "RetryPolicy", "__version__"]
