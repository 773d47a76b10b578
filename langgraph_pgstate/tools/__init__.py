"""Tool executions: each action takes effect at most once, even if the process is killed."""

from langgraph_pgstate.tools.budget import Budget
from langgraph_pgstate.tools.intents import Execution, current_execution
from langgraph_pgstate.tools.ledger import AsyncToolLedger, ToolLedger
from langgraph_pgstate.tools.policy import Backoff, Happened, ToolPolicy, ToolSettings

__all__ = [
    "AsyncToolLedger",
    "Backoff",
    "Budget",
    "Execution",
    "Happened",
    "ToolLedger",
    "ToolPolicy",
    "ToolSettings",
    "current_execution",
]
