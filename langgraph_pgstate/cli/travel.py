"""The graph of the demo for `pgstate serve`, where its threads can go on."""

from __future__ import annotations

from langgraph_pgstate.agent_server import tools
from langgraph_pgstate.cli.agent import build_agent, offline_model, payment


@tools.policy(on_unknown="retry")
def print_voucher(hotel: str) -> str:
    """Print the voucher for a hotel."""
    return f"voucher for {hotel} printed"


graph = build_agent(offline_model(), None, lambda *_: None, effects=[print_voucher, payment(tools)], ledger=tools)
