"""Passing by checkpoints that are damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.operations.checkpoints.addresses import Address
from langgraph_pgstate.operations.checkpoints.checkpoints import get_tuple
from langgraph_pgstate.sql import Queries

_logger = logging.getLogger("langgraph_pgstate")
_WHY_BYTES = 2000
# A transaction that may only read, and a role that may.
_READ_ONLY = ("25006", "42501")


async def get_good_ancestor(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    address: Address,
    damage: CorruptStateError,
    load: Callable[[Any], CheckpointTuple],
) -> CheckpointTuple | None:
    """The nearest ancestor of a damaged checkpoint that can be read; the thread's event list and the log tell of it.

    Nothing of the damaged checkpoint is changed: who repairs the database finds it as it was. Its links are followed
    even where its state cannot be decoded. Two round trips for each ancestor.

    Args:
        db: The connection.
        queries: The queries of the schema.
        codec: Decodes values.
        address: What was asked for; without an id, the newest of its namespace.
        damage: What is wrong with it.
        load: Makes of what was read what the caller wants.

    Returns:
        The ancestor; `None` if what was asked for is gone by now.

    Raises:
        CorruptStateError: If no ancestor is good, or there is none: the damage that was given.
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
                await db.execute(queries.note_damage, noted)
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _READ_ONLY:
                raise
            # Where nothing can be written, what can be read is still wanted.
            _logger.error("that %s is damaged is not noted: %s", address._replace(checkpoint_id=damaged_id), error)
        return loaded
    raise damage
