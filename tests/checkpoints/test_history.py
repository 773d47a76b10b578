"""Histories of DeltaChannels, read while a prune removes what they are made of."""

from __future__ import annotations

import pytest
from support import APIS, config_of, crossed

from langgraph_pgstate.checkpoints import delta_channels, listing
from langgraph_pgstate.errors import NotFoundError
from tests.checkpoints.test_reading import MOMENTS, THREAD, before_statement, graph_of, named, readers


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks take several statements."""
    monkeypatch.setattr(delta_channels, "_LINEAGE_PAGE", 4)
    monkeypatch.setattr(listing, "_PAGE", 4)


# The checkpoint that is read: before the first snapshot, with more ancestors than a short page has.
TARGET = 6


@pytest.mark.parametrize(("moment", "api"), crossed(MOMENTS, APIS))
async def test_an_old_delta_channel_is_whole_or_gone(
    moment: int, api: type, dsn: str, schema: str, short_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a prune comes: before, between, or after the statements, and between LangGraph's two calls."""
    async with readers(api, dsn, schema) as (saver, values, prune):
        graph = graph_of(saver)
        oldest_first = sorted(values)
        target = oldest_first[TARGET]
        with before_statement(moment, prune, monkeypatch):
            try:
                state = await graph.aget_state(named(target))
            except NotFoundError:
                assert moment > 0
            else:
                # Of a checkpoint that is not there LangGraph makes an empty state.
                assert state.values == (values[target] if state.metadata else {})
                assert state.metadata or moment == 0
        assert (await graph.aget_state(THREAD)).values == values[oldest_first[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_the_history_of_a_pruned_checkpoint_has_a_named_result(api: type, dsn: str, schema: str) -> None:
    async with readers(api, dsn, schema) as (saver, values, prune):
        config = named(sorted(values)[TARGET])
        (found,) = (await saver.aget_delta_channel_history(config=config, channels=["items"])).values()
        assert len(found["writes"]) == 4
        assert "seed" not in found
        prune()
        with pytest.raises(NotFoundError, match=f"{config['configurable']['checkpoint_id']}.* pruned or deleted"):
            await saver.aget_delta_channel_history(config=config, channels=["items"])
        # One that has nothing is another matter.
        found = await saver.aget_delta_channel_history(config=config_of("never"), channels=["items"])
        assert found == {"items": {"writes": []}}
