"""Lists of leases."""

from __future__ import annotations

import pytest

from langgraph_pgstate.errors import ConfigurationError
from tests.leases.test_api import hold, maybe
from tests.test_state import APIS as STATES
from tests.test_state import open_state


@pytest.mark.parametrize("api", STATES)
async def test_leases_are_listed_in_pages(api: type, dsn: str, schema: str) -> None:
    async with open_state(api, dsn, schema) as state:
        async with hold(state.leases, "a"), hold(state.leases, "b"), hold(state.leases, "c"):
            found, cursor = [], None
            while True:
                page = await maybe(state.leases.list(limit=2, cursor=cursor))
                found += [lease.thread_id for lease in page.items]
                cursor = page.next
                if cursor is None:
                    break
            assert found == ["a", "b", "c"]
        with pytest.raises(ConfigurationError):
            await maybe(state.leases.list(limit=0))
