"""Settings and options of all parts, with their defaults and checks. Its modules are named after the parts."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes
from langgraph_pgstate.settings.checks import (
    DEFAULT_SCHEMA,
    MAX_KEY_BYTES,
    TtlStrategy,
    age,
    check_options,
    check_schema_name,
    check_ttl,
    check_ttl_strategy,
)
from langgraph_pgstate.settings.connections import (
    DEFAULT_EMBEDDED_PATH,
    DSN_VARIABLE,
    ConnectionOptions,
    PoolSettings,
    RetryPolicy,
    dsn_from_environment,
)
from langgraph_pgstate.settings.saver import (
    DEFAULT_CACHE_BYTES,
    MAX_LEASE_SECONDS,
    AllowedTypes,
    DatabaseOptions,
    Guard,
    GuardSettings,
    OpenSaverOptions,
    SaverOptions,
    ThreadKeys,
    Upcaster,
    check_allowed_types,
    database_options,
    schema_of,
)

# A saver alone needs none of these, and making their classes takes 3 ms.
if TYPE_CHECKING:
    from langgraph_pgstate.settings.queue import (
        DEFAULT_QUEUE,
        DEFAULT_SIZE_LIMIT,
        DEFAULT_STREAM_TTL,
        AssistantFields,
        Backoff,
        DefaultAnswer,
        EnqueueOptions,
        KeySource,
        ScheduleChanges,
        ScheduleOptions,
        WorkerOptions,
    )
    from langgraph_pgstate.settings.record import RecorderSettings
    from langgraph_pgstate.settings.threads import ThreadOptions, ThreadOwner
    from langgraph_pgstate.settings.webhooks import WebhookSettings
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "DEFAULT_QUEUE": "langgraph_pgstate.settings.queue",
            "DEFAULT_SIZE_LIMIT": "langgraph_pgstate.settings.queue",
            "DEFAULT_STREAM_TTL": "langgraph_pgstate.settings.queue",
            "AssistantFields": "langgraph_pgstate.settings.queue",
            "Backoff": "langgraph_pgstate.settings.queue",
            "DefaultAnswer": "langgraph_pgstate.settings.queue",
            "EnqueueOptions": "langgraph_pgstate.settings.queue",
            "KeySource": "langgraph_pgstate.settings.queue",
            "ScheduleChanges": "langgraph_pgstate.settings.queue",
            "ScheduleOptions": "langgraph_pgstate.settings.queue",
            "WorkerOptions": "langgraph_pgstate.settings.queue",
            "RecorderSettings": "langgraph_pgstate.settings.record",
            "ThreadOptions": "langgraph_pgstate.settings.threads",
            "ThreadOwner": "langgraph_pgstate.settings.threads",
            "WebhookSettings": "langgraph_pgstate.settings.webhooks",
        },
    )

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "DEFAULT_EMBEDDED_PATH",
    "DEFAULT_QUEUE",
    "DEFAULT_SCHEMA",
    "DEFAULT_SIZE_LIMIT",
    "DEFAULT_STREAM_TTL",
    "DSN_VARIABLE",
    "MAX_KEY_BYTES",
    "MAX_LEASE_SECONDS",
    "AllowedTypes",
    "AssistantFields",
    "Backoff",
    "ConnectionOptions",
    "DatabaseOptions",
    "DefaultAnswer",
    "EnqueueOptions",
    "Guard",
    "GuardSettings",
    "KeySource",
    "OpenSaverOptions",
    "PoolSettings",
    "RecorderSettings",
    "RetryPolicy",
    "SaverOptions",
    "ScheduleChanges",
    "ScheduleOptions",
    "ThreadKeys",
    "ThreadOptions",
    "ThreadOwner",
    "TtlStrategy",
    "Upcaster",
    "WebhookSettings",
    "WorkerOptions",
    "age",
    "check_allowed_types",
    "check_options",
    "check_schema_name",
    "check_ttl",
    "check_ttl_strategy",
    "database_options",
    "dsn_from_environment",
    "schema_of",
]
