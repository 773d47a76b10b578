"""`state.assistants` of both APIs."""

from __future__ import annotations

import pytest
from support.queue import STATES, call, open_state

from langgraph_pgstate.errors import AssistantExistsError


@pytest.mark.parametrize("api", STATES)
async def test_assistants_are_created_changed_found_and_deleted(api: type, dsn: str, schema: str) -> None:
    async with open_state(api, dsn, schema) as state:
        part = state.assistants
        made = await call(part.create, "a", graph="chat", context={"model": "large"}, metadata={"team": "sales"})
        assert (made.name, made.context, made.version) == ("Untitled", {"model": "large"}, 1)
        with pytest.raises(AssistantExistsError):
            await call(part.create, "a", graph="chat")
        assert await call(part.create, "a", graph="chat", if_exists="do_nothing") == made
        changed = await call(part.update, "a", name="mine", scope={"team": "sales"})
        assert [one.version for one in await call(part.versions, "a")] == [2, 1]
        assert await call(part.sorted, metadata={"team": "sales"}) == (changed,)
        assert await call(part.count, name="none") == 0
        assert (await call(part.set_version, "a", 1)).name == "Untitled"
        assert await call(part.get, "a", scope={"team": "other"}) is None
        assert (await call(part.get, "a")).version == 1
        assert [await call(part.delete, "a") for _ in range(2)] == [True, False]
