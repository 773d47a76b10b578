"""LangGraph's HTTP protocol on a state: an ASGI application, to be served alone or mounted in another one."""

from langgraph_pgstate.server.app import AgentServer, create_app
from langgraph_pgstate.server.headers import HeaderSelection
from langgraph_pgstate.server.rates import RateLimit

__all__ = ["AgentServer", "HeaderSelection", "RateLimit", "create_app"]
