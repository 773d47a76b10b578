"""LangGraph persistence on PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.encryption import (
        AwsMasterKey,
        CallableMasterKey,
        Encryption,
        GoogleMasterKey,
        LocalMasterKey,
        VaultMasterKey,
    )
    from langgraph_pgstate.options import PoolSettings, RetryPolicy, ThreadKeys
    from langgraph_pgstate.record.options import RecorderSettings
    from langgraph_pgstate.runs.options import Backoff, DefaultAnswer, WebhookSettings
    from langgraph_pgstate.runs.types import Rate
    from langgraph_pgstate.saver.aio import AsyncPGStateSaver
    from langgraph_pgstate.saver.blocking import PGStateSaver
    from langgraph_pgstate.state import AsyncPGState, PGState
    from langgraph_pgstate.threads.types import PruneResult
    from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings
    from langgraph_pgstate.worker.worker import AsyncWorker, Worker
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncPGState": "langgraph_pgstate.state",
            "AsyncPGStateSaver": "langgraph_pgstate.saver.aio",
            "AsyncWorker": "langgraph_pgstate.worker.worker",
            "AwsMasterKey": "langgraph_pgstate.encryption",
            "Backoff": "langgraph_pgstate.runs.options",
            "CallableMasterKey": "langgraph_pgstate.encryption",
            "DefaultAnswer": "langgraph_pgstate.runs.options",
            "Encryption": "langgraph_pgstate.encryption",
            "GoogleMasterKey": "langgraph_pgstate.encryption",
            "LocalMasterKey": "langgraph_pgstate.encryption",
            "PGState": "langgraph_pgstate.state",
            "PGStateSaver": "langgraph_pgstate.saver.blocking",
            "PoolSettings": "langgraph_pgstate.options",
            "PruneResult": "langgraph_pgstate.threads.types",
            "Rate": "langgraph_pgstate.runs.types",
            "RecorderSettings": "langgraph_pgstate.record.options",
            "RetryPolicy": "langgraph_pgstate.options",
            "ThreadKeys": "langgraph_pgstate.options",
            "ToolPolicy": "langgraph_pgstate.tools.policy",
            "ToolSettings": "langgraph_pgstate.tools.policy",
            "VaultMasterKey": "langgraph_pgstate.encryption",
            "WebhookSettings": "langgraph_pgstate.runs.options",
            "Worker": "langgraph_pgstate.worker.worker",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "AsyncPGState",
    "AsyncPGStateSaver",
    "AsyncWorker",
    "AwsMasterKey",
    "Backoff",
    "CallableMasterKey",
    "DefaultAnswer",
    "Encryption",
    "GoogleMasterKey",
    "LocalMasterKey",
    "PGState",
    "PGStateSaver",
    "PoolSettings",
    "PruneResult",
    "Rate",
    "RecorderSettings",
    "RetryPolicy",
    "ThreadKeys",
    "ToolPolicy",
    "ToolSettings",
    "VaultMasterKey",
    "WebhookSettings",
    "Worker",
    "__version__",
]


@asynccontextmanager
async def _checkpointer() -> AsyncIterator["AsyncPGStateSaver"]:
    """Open `agent_server.checkpointer`, imported in another thread because imports block the event loop."""
    import asyncio
    from importlib import import_module

    agent_server = await asyncio.to_thread(import_module, "langgraph_pgstate.agent_server")
    async with agent_server.checkpointer() as saver:
        yield saver


# langgraph-api (0.16.7) cuts `langgraph_pgstate.agent_server:checkpointer` at the last dot, and looks up the second
# part in this package's `__dict__`. The lookup does not call `__getattr__`, so the attribute must exist.
globals()["agent_server:checkpointer"] = _checkpointer
