"""Tool executions: each action takes effect at most once, even if the process is killed.

An action is an intent, an act and an outcome. The module `intents` reads the intent from a request of LangGraph or from
the call of a function. `action_runner` commits the intent, calls the tool by `acting`, and writes the outcome, which
`results` encodes. If the action is recorded already, `recorded` decides whether the tool runs again. `executor` calls
tools and runs the statements of `executions`, in blocking or async code.
"""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.tools.budget import Budget
    from langgraph_pgstate.tools.intents import Execution, current_execution
    from langgraph_pgstate.tools.ledger import AsyncToolLedger, ToolLedger
    from langgraph_pgstate.tools.masking import MaskResults, mask_results, read_result_tool
    from langgraph_pgstate.tools.policy import Happened, ToolPolicy, ToolRetry, ToolSettings
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncToolLedger": "langgraph_pgstate.tools.ledger",
            "Budget": "langgraph_pgstate.tools.budget",
            "Execution": "langgraph_pgstate.tools.intents",
            "Happened": "langgraph_pgstate.tools.policy",
            "MaskResults": "langgraph_pgstate.tools.masking",
            "ToolLedger": "langgraph_pgstate.tools.ledger",
            "ToolPolicy": "langgraph_pgstate.tools.policy",
            "ToolRetry": "langgraph_pgstate.tools.policy",
            "ToolSettings": "langgraph_pgstate.tools.policy",
            "current_execution": "langgraph_pgstate.tools.intents",
            "mask_results": "langgraph_pgstate.tools.masking",
            "read_result_tool": "langgraph_pgstate.tools.masking",
        },
    )

__all__ = [
    "AsyncToolLedger",
    "Budget",
    "Execution",
    "Happened",
    "MaskResults",
    "ToolLedger",
    "ToolPolicy",
    "ToolRetry",
    "ToolSettings",
    "current_execution",
    "mask_results",
    "read_result_tool",
]
