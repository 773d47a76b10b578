"""The names that a `langgraph.json` and its graphs use on LangGraph's own server."""

from langgraph_pgstate.server.langgraph_platform import AgentServerSettings, checkpointer, record, serving, state, tools

__all__ = ["AgentServerSettings", "checkpointer", "record", "serving", "state", "tools"]
