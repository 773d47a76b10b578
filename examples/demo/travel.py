"""The graph of the demo for `pgstate serve`, where its threads can go on."""

from __future__ import annotations

from examples.demo.agent import build_agent, offline_model, payment
from langgraph_pgstate.server.langgraph_platform import tools


@tools.policy(on_unknown="retry")
def print_voucher(hotel: str) -> str:
    """Print the voucher for a hotel."""
    return f"voucher for {hotel} printed"


graph = build_agent(offline_model(), None, lambda *_: None, effects=[print_voucher, payment(tools)], ledger=tools)
