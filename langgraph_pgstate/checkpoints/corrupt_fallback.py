"""Fallback from a damaged checkpoint to its nearest readable ancestor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.event_chains import insert_events
from langgraph_pgstate.checkpoints.getting import get_tuple
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.schema.queries import Queries

_logger = logging.getLogger("langgraph_pgstate")
_WHY_BYTES = 2000
# The SQLSTATEs of a read-only transaction and of a role without the privilege to write.
_READ_ONLY = ("25006", "42501")


async def get_good_ancestor(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    damage: CorruptStateError,
    load: Callable[[Any], CheckpointTuple],
) -> CheckpointTuple | None:
    """Return the nearest readable ancestor of a damaged checkpoint. Record the damage as an event, and log it.

    The damaged checkpoint is not changed, so that it can still be repaired. Return `None` if the damaged checkpoint no
    longer exists. One round trip for each ancestor.

    Raises:
        CorruptStateError: The error `damage`, if no ancestor is readable.
    """
    key = address._asdict()
    rows = await db.fetch(queries.get_parent, key)
    if not rows:
        return None
    damaged_id, cursor = rows[0]
    passed = {damaged_id}
    while cursor is not None and cursor not in passed:
        passed.add(cursor)
        candidate = address._replace(checkpoint_id=cursor)
        found = await get_tuple(db, queries, codec, candidate)
        if found is None:
            break
        try:
            loaded = load(found)
        except CorruptStateError:
            cursor = found[0].parent_id
            continue
        _logger.error("%s; %s is used instead", damage, candidate)
        noted = {**key, "checkpoint_id": damaged_id, "used_id": cursor, "why": damage.why[:_WHY_BYTES]}
        try:
            async with db.transaction():
                await insert_events(db, queries, queries.note_damage, noted)
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _READ_ONLY:
                raise
            # Reading must work even if writing is not allowed.
            _logger.error(
                "the damage of %s could not be recorded: %s", address._replace(checkpoint_id=damaged_id), error
            )
        return loaded
    raise damage
