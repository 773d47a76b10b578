"""LangGraph's HTTP protocol as an ASGI application, to be served alone or mounted in another application."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.server.app import AgentServer, create_app
    from langgraph_pgstate.server.rates import RateLimit
    from langgraph_pgstate.server.service import HeaderSelection
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AgentServer": "langgraph_pgstate.server.app",
            "HeaderSelection": "langgraph_pgstate.server.service",
            "RateLimit": "langgraph_pgstate.server.rates",
            "create_app": "langgraph_pgstate.server.app",
        },
    )

__all__ = ["AgentServer", "HeaderSelection", "RateLimit", "create_app"]
