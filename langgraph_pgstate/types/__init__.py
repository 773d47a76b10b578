"""Types that calls return besides those of LangGraph."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.types.branches import (
        Branch,
        ChannelDifference,
        Difference,
        Label,
        LineageStep,
        MessageChange,
        ValueChange,
    )
    from langgraph_pgstate.types.budgets import Budget
    from langgraph_pgstate.types.events import Event, HandoffStatistics
    from langgraph_pgstate.types.interrupts import Answer, InterruptedThread, PendingInterrupt
    from langgraph_pgstate.types.leases import Lease
    from langgraph_pgstate.types.messages import Message, MessageHit
    from langgraph_pgstate.types.pages import Page
    from langgraph_pgstate.types.prices import Price
    from langgraph_pgstate.types.prune import PruneResult
    from langgraph_pgstate.types.queries import Parameters, Query, Row, Rows
    from langgraph_pgstate.types.queue import (
        ClaimedRun,
        Claims,
        EnqueuedRun,
        QueueCount,
        QueuedRun,
        QueueLimit,
        Rate,
        Recovered,
        RunKey,
        Tended,
    )
    from langgraph_pgstate.types.reports import (
        BackfillReport,
        CheckReport,
        MaintenanceReport,
        Problem,
        Progress,
        TableSize,
        ThreadSize,
        TransferReport,
        UpcastReport,
    )
    from langgraph_pgstate.types.runs import Provenance, Run, Usage
    from langgraph_pgstate.types.schedules import Schedule
    from langgraph_pgstate.types.schema import SchemaStatus
    from langgraph_pgstate.types.spans import Span, SpanNode, ToolStatistics
    from langgraph_pgstate.types.streams import EventBatch, RunIds, StoredBatch, StreamEvent, StreamPage, Wanted
    from langgraph_pgstate.types.threads import RunawayThread, Thread
    from langgraph_pgstate.types.tools import CompensationReport, ToolExecution
    from langgraph_pgstate.types.webhooks import Delivery, Webhook
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Answer": "langgraph_pgstate.types.interrupts",
            "BackfillReport": "langgraph_pgstate.types.reports",
            "Branch": "langgraph_pgstate.types.branches",
            "ChannelDifference": "langgraph_pgstate.types.branches",
            "Budget": "langgraph_pgstate.types.budgets",
            "CheckReport": "langgraph_pgstate.types.reports",
            "ClaimedRun": "langgraph_pgstate.types.queue",
            "CompensationReport": "langgraph_pgstate.types.tools",
            "Delivery": "langgraph_pgstate.types.webhooks",
            "Difference": "langgraph_pgstate.types.branches",
            "EnqueuedRun": "langgraph_pgstate.types.queue",
            "Event": "langgraph_pgstate.types.events",
            "EventBatch": "langgraph_pgstate.types.streams",
            "HandoffStatistics": "langgraph_pgstate.types.events",
            "InterruptedThread": "langgraph_pgstate.types.interrupts",
            "Label": "langgraph_pgstate.types.branches",
            "Lease": "langgraph_pgstate.types.leases",
            "LineageStep": "langgraph_pgstate.types.branches",
            "MaintenanceReport": "langgraph_pgstate.types.reports",
            "Message": "langgraph_pgstate.types.messages",
            "MessageChange": "langgraph_pgstate.types.branches",
            "MessageHit": "langgraph_pgstate.types.messages",
            "Page": "langgraph_pgstate.types.pages",
            "Parameters": "langgraph_pgstate.types.queries",
            "PendingInterrupt": "langgraph_pgstate.types.interrupts",
            "Price": "langgraph_pgstate.types.prices",
            "Problem": "langgraph_pgstate.types.reports",
            "Progress": "langgraph_pgstate.types.reports",
            "Provenance": "langgraph_pgstate.types.runs",
            "PruneResult": "langgraph_pgstate.types.prune",
            "Query": "langgraph_pgstate.types.queries",
            "QueueCount": "langgraph_pgstate.types.queue",
            "QueuedRun": "langgraph_pgstate.types.queue",
            "Rate": "langgraph_pgstate.types.queue",
            "QueueLimit": "langgraph_pgstate.types.queue",
            "Claims": "langgraph_pgstate.types.queue",
            "Recovered": "langgraph_pgstate.types.queue",
            "Row": "langgraph_pgstate.types.queries",
            "Rows": "langgraph_pgstate.types.queries",
            "Run": "langgraph_pgstate.types.runs",
            "RunIds": "langgraph_pgstate.types.streams",
            "RunKey": "langgraph_pgstate.types.queue",
            "RunawayThread": "langgraph_pgstate.types.threads",
            "Schedule": "langgraph_pgstate.types.schedules",
            "SchemaStatus": "langgraph_pgstate.types.schema",
            "Span": "langgraph_pgstate.types.spans",
            "SpanNode": "langgraph_pgstate.types.spans",
            "StoredBatch": "langgraph_pgstate.types.streams",
            "StreamEvent": "langgraph_pgstate.types.streams",
            "StreamPage": "langgraph_pgstate.types.streams",
            "TableSize": "langgraph_pgstate.types.reports",
            "Tended": "langgraph_pgstate.types.queue",
            "Thread": "langgraph_pgstate.types.threads",
            "ThreadSize": "langgraph_pgstate.types.reports",
            "ToolExecution": "langgraph_pgstate.types.tools",
            "ToolStatistics": "langgraph_pgstate.types.spans",
            "TransferReport": "langgraph_pgstate.types.reports",
            "UpcastReport": "langgraph_pgstate.types.reports",
            "Usage": "langgraph_pgstate.types.runs",
            "ValueChange": "langgraph_pgstate.types.branches",
            "Wanted": "langgraph_pgstate.types.streams",
            "Webhook": "langgraph_pgstate.types.webhooks",
        },
    )

__all__ = [
    "Answer",
    "BackfillReport",
    "Branch",
    "Budget",
    "ChannelDifference",
    "CheckReport",
    "ClaimedRun",
    "Claims",
    "CompensationReport",
    "Delivery",
    "Difference",
    "EnqueuedRun",
    "Event",
    "EventBatch",
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
    "QueueCount",
    "QueueLimit",
    "QueuedRun",
    "Rate",
    "Recovered",
    "Row",
    "Rows",
    "Run",
    "RunIds",
    "RunKey",
    "RunawayThread",
    "Schedule",
    "SchemaStatus",
    "Span",
    "SpanNode",
    "StoredBatch",
    "StreamEvent",
    "StreamPage",
    "TableSize",
    "Tended",
    "Thread",
    "ThreadSize",
    "ToolExecution",
    "ToolStatistics",
    "TransferReport",
    "UpcastReport",
    "Usage",
    "ValueChange",
    "Wanted",
    "Webhook",
]
