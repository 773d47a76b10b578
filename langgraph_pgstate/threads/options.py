"""Options of a thread that is created."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypedDict

from langgraph_pgstate.options import TtlStrategy
from langgraph_pgstate.scopes import Scope


class ThreadOwner(TypedDict, total=False):
    """The owner of a copy or a fork, which is otherwise that of the source.

    Attributes:
        metadata: All its metadata.
        user_id: The user.
        tenant_id: The tenant.
    """

    metadata: Mapping[str, Any]
    user_id: str | None
    tenant_id: str | None


class ThreadOptions(TypedDict, total=False):
    """Options of a thread that is created.

    Attributes:
        metadata: The caller's metadata.
        title: Its title.
        user_id: The user.
        tenant_id: The tenant.
        agent: The graph or agent.
        ttl: Time for which it is kept after it was accessed last; for ever by default.
        ttl_strategy: What happens then: `delete`, the default, or `keep_latest`, which prunes all but its newest
            checkpoints.
        if_exists: `raise` an error if there is a thread under the id, the default, or `do_nothing` and return that one.
        scope: Metadata that a thread which exists must contain to be returned.
    """

    metadata: Mapping[str, Any] | None
    title: str | None
    user_id: str | None
    tenant_id: str | None
    agent: str | None
    ttl: timedelta | None
    ttl_strategy: TtlStrategy
    if_exists: Literal["raise", "do_nothing"]
    scope: Scope | None
