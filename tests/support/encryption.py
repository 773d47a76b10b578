"""Encryption of all savers and states in tests, and searches for secrets in the database."""

from __future__ import annotations

from typing import Any

from langgraph_pgstate import Encryption, LocalMasterKey
from langgraph_pgstate.encryption import keys

MASTER = LocalMasterKey(bytes(range(32)))


def encrypt_all() -> None:
    """Give every database that a saver or a state uses an encryption, unless a test gives one."""
    from langgraph_pgstate import state
    from langgraph_pgstate.admin import api
    from langgraph_pgstate.memory import store
    from langgraph_pgstate.saver import aio, blocking

    readable = ("score", "n", "customer", "number", "topic")
    encryption = Encryption(MASTER, scope="user", readable=readable, search="words", plain_vectors=True)

    def use_keys(database: Any, given: Encryption | None, queries: Any) -> None:
        keys.use_keys(database, given or (encryption if database.keys is None else None), queries)

    for module in (state, aio, blocking, api, store):
        module.use_keys = use_keys  # type: ignore[attr-defined]
