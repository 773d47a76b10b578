"""What is written together with a checkpoint: in its transaction, in its round trip, and never without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest
from support import APIS, config_of, counted, open_saver, put_arguments, put_chain, usual

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints import planning
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.errors import SchemaMissingError
from langgraph_pgstate.schema.queries import NamedQuery, Statement


class Diary:
    """A hook that notes each put in a table of its own."""

    def __init__(self, schema: str, text: str = "") -> None:
        text = text or f"INSERT INTO {schema}.diary VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1"
        self.query = NamedQuery("note", "", text.encode(), ("thread_id", "checkpoint_id"))
        self.before: list[tuple[PutPlan, Mapping[str, Any]]] = []
        self.after: list[PutPlan] = []
        self.silent = False

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        self.before.append((plan, config))
        address = plan.request.address
        found = {"thread_id": address.thread_id, "checkpoint_id": address.checkpoint_id}
        return () if self.silent else [(self.query, found)]

    def after_put(self, plan: PutPlan) -> None:
        self.after.append(plan)


@pytest.fixture
def diary(schema: str, connection: psycopg.Connection, saver: PGStateSaver) -> Diary:
    connection.execute(f"CREATE TABLE {schema}.diary (thread_id text, checkpoint_id text, PRIMARY KEY (checkpoint_id))")
    return Diary(schema)


def noted(connection: psycopg.Connection, schema: str) -> list[str]:
    rows = connection.execute(f"SELECT checkpoint_id FROM {schema}.diary ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def stored(connection: psycopg.Connection, schema: str) -> list[str]:
    rows = connection.execute(f"SELECT checkpoint_id FROM {schema}.checkpoints ORDER BY 1").fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize("prepare_threshold", [5, None])
@pytest.mark.parametrize("api", APIS)
async def test_a_put_with_a_companion_takes_one_round_trip(
    api: type,
    prepare_threshold: int | None,
    dsn: str,
    schema: str,
    diary: Diary,
    connection: psycopg.Connection,
) -> None:
    options: dict[str, Any] = {"pool": 1, "prepare_threshold": prepare_threshold, "hook": diary}
    with counted(dsn) as proxy:
        async with open_saver(api, proxy.dsn, schema, **options) as saver:
            config: Any = config_of("t")
            trips = []
            for step in range(20):
                before = proxy.count
                config = await saver.aput(*put_arguments(config, step))
                trips.append(proxy.count - before)
            assert usual(trips[10:]) == 1
    assert len(noted(connection, schema)) == 20
    assert noted(connection, schema) == stored(connection, schema)
    assert [plan.request.address for plan in diary.after] == [plan.request.address for plan, _ in diary.before]


@pytest.mark.parametrize("api", APIS)
async def test_a_clone_has_the_companion_too(api: type, dsn: str, schema: str, diary: Diary) -> None:
    async with open_saver(api, dsn, schema, hook=diary) as saver:
        clone = saver.with_allowlist([("somewhere", "Something")])
        assert clone is not saver
        (config,) = await put_chain(clone, "t", 1)
        assert [plan.request.address.config for plan in diary.after] == [config]
        assert diary.before[0][1]["configurable"]["thread_id"] == "t"


@pytest.mark.parametrize("api", APIS)
async def test_it_is_asked_again_when_the_parent_is_gone(
    api: type, dsn: str, schema: str, diary: Diary, connection: psycopg.Connection
) -> None:
    """The parent is deleted behind the saver's back: the first try stores nothing, the second is planned anew."""
    async with open_saver(api, dsn, schema, hook=diary) as saver:
        configs = await put_chain(saver, "t", 3)
        connection.execute(f"DELETE FROM {schema}.checkpoints")
        arguments = put_arguments(configs[-1], 3)
        last = await saver.aput(*arguments)
        assert len(diary.before) == 5
        assert len(diary.after) == 4
        first, second = (plan for plan, _ in diary.before[-2:])
        assert first.base_revisions
        assert not second.base_revisions
        assert diary.after[-1].manifest is second.manifest
        assert (await saver.aget_tuple(last)).checkpoint["channel_values"] == arguments[1]["channel_values"]


@pytest.mark.parametrize("api", APIS)
async def test_a_cold_cache_gives_the_companion_the_parent_as_the_database_has_it(
    api: type, dsn: str, schema: str, diary: Diary
) -> None:
    async with open_saver(api, dsn, schema) as saver:
        configs = await put_chain(saver, "t", 3)
    async with open_saver(api, dsn, schema, hook=diary) as saver:
        await saver.aput(*put_arguments(configs[-1], 3))
    ((plan, _),) = diary.before
    assert plan.parent is not None
    old, new = (manifest.entries["messages"].fingerprints.digests for manifest in (plan.parent, plan.manifest))
    assert (len(old), len(new)) == (3 * 16, 4 * 16)
    assert new.startswith(old)


@pytest.mark.parametrize("api", APIS)
async def test_what_the_database_refuses_of_it_fails_no_put(
    api: type, dsn: str, schema: str, diary: Diary, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is stored alone, the hook is not told that its own is, and the next put is complete again."""
    broken = Diary(schema, f"INSERT INTO {schema}.diary SELECT $1, $2 WHERE 1 / 0 = 1")
    async with open_saver(api, dsn, schema, hook=broken, pool=1) as saver:
        configs = await put_chain(saver, "t", 2)
        assert broken.after == []
        assert stored(connection, schema) == [config["configurable"]["checkpoint_id"] for config in configs]
        assert "was stored without its record" in caplog.text
        broken.query = diary.query
        config = await saver.aput(*put_arguments(configs[-1], 3))
        assert noted(connection, schema) == [config["configurable"]["checkpoint_id"]]
        assert len(broken.after) == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_put_that_is_refused_itself_takes_its_companion_along_when_it_is_tried_again(
    api: type, dsn: str, schema: str, diary: Diary, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes agreed on a segment's id: nothing was left out, so the hook hears of it."""
    ids = iter([7, 7, 8, 9])
    monkeypatch.setattr(planning, "new_segment_id", lambda *_: next(ids))
    async with open_saver(api, dsn, schema, hook=diary, pool=1) as saver:
        for thread_step in (0, 1):
            checkpoint = put_arguments(config_of("t"), thread_step)
            checkpoint[1]["channel_values"]["messages"] = [f"{thread_step} " + "long " * 600]
            await saver.aput(*checkpoint)
    assert len(diary.after) == 2
    assert noted(connection, schema) == stored(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_any_other_error_takes_the_checkpoint_back(
    api: type, dsn: str, schema: str, diary: Diary, connection: psycopg.Connection
) -> None:
    broken = Diary(schema, f"INSERT INTO {schema}.no_such_table VALUES ($1::text, $2::text)")
    async with open_saver(api, dsn, schema, hook=broken, pool=1) as saver:
        with pytest.raises(SchemaMissingError):
            await put_chain(saver, "t", 1)
        assert broken.after == []
        assert stored(connection, schema) == []
        broken.silent = True
        assert len(await put_chain(saver, "t", 2)) == 2
        assert len(broken.after) == 2


@pytest.mark.parametrize("api", APIS)
async def test_a_put_whose_answer_is_lost_is_done_once(
    api: type, dsn: str, schema: str, diary: Diary, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        async with open_saver(api, proxy.dsn, schema, pool=1, hook=diary) as saver:
            configs = await put_chain(saver, "t", 2)
            proxy.answers_to_lose = 1
            await saver.aput(*put_arguments(configs[-1], 2))
            assert proxy.answers_to_lose == 0
    assert len(noted(connection, schema)) == 3
    assert noted(connection, schema) == stored(connection, schema)
    assert len(diary.after) == 3


@pytest.mark.parametrize("api", APIS)
async def test_a_subgraphs_put_knows_the_root_it_belongs_to(api: type, dsn: str, schema: str, diary: Diary) -> None:
    async with open_saver(api, dsn, schema, hook=diary) as saver:
        (root,) = await put_chain(saver, "t", 1)
        config, checkpoint, metadata, versions = put_arguments(config_of("t", "child:1"), 0)
        metadata["parents"] = {"": root["configurable"]["checkpoint_id"]}
        await saver.aput(config, checkpoint, metadata, versions)
        plan = diary.before[-1][0]
        assert plan.request.root is diary.after[0].manifest
