"""Types that calls return besides those of LangGraph."""

from langgraph_pgstate.types.branches import (
    Branch,
    ChannelDifference,
    Difference,
    Label,
    LineageStep,
    MessageChange,
    ValueChange,
)
from langgraph_pgstate.types.events import Event, HandoffStatistics
from langgraph_pgstate.types.interrupts import Answer, InterruptedThread, PendingInterrupt
from langgraph_pgstate.types.leases import Lease
from langgraph_pgstate.types.messages import Message, MessageHit
from langgraph_pgstate.types.pages import Page
from langgraph_pgstate.types.prices import Price
from langgraph_pgstate.types.queries import Parameters, Query, Row, Rows
from langgraph_pgstate.types.reports import (
    BackfillReport,
    CheckReport,
    MaintenanceReport,
    Problem,
    Progress,
    SchemaStatus,
    TableSize,
    ThreadSize,
    TransferReport,
    UpcastReport,
)
from langgraph_pgstate.types.runs import Provenance, Run, Usage
from langgraph_pgstate.types.spans import Span, SpanNode, ToolStatistics
from langgraph_pgstate.types.threads import PruneResult, RunawayThread, Thread
from langgraph_pgstate.types.tools import CompensationReport, ToolExecution

__all__ = [
    "Answer",
    "BackfillReport",
    "Branch",
    "ChannelDifference",
    "CheckReport",
    "CompensationReport",
    "Difference",
    "Event",
    "HandoffStatistics",
    "InterruptedThread",
    "Label",
    "Lease",
    "LineageStep",
    "MaintenanceReport",
    "Message",
    "MessageChange",
    "MessageHit",
    "Page",
    "Parameters",
    "PendingInterrupt",
    "Price",
    "Problem",
    "Progress",
    "Provenance",
    "PruneResult",
    "Query",
    "Row",
    "Rows",
    "Run",
    "RunawayThread",
    "SchemaStatus",
    "Span",
    "SpanNode",
    "TableSize",
    "Thread",
    "ThreadSize",
    "ToolExecution",
    "ToolStatistics",
    "TransferReport",
    "UpcastReport",
    "Usage",
    "ValueChange",
]
