"""What the ledger keeps of results: compressed, with a checksum, exactly; and what was stored before that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langgraph.types import Command
from support_ledger import LEDGERS, Bench, ask, calls, open_bench, thread, tool_of

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import CorruptStateError, UnreadableFormatError
from langgraph_pgstate.operations.tools.tool_executions import Outcome, Recorded
from langgraph_pgstate.tools import ToolSettings
from langgraph_pgstate.tools.results import ParentAnswer, restore, success
from langgraph_pgstate.types import ToolExecution

READ = calls(("call_1", "read", {"title": "A. K."}))
BOOK = "All happy families are alike. " * 10_000

contents = st.one_of(
    st.none(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=20), st.integers(1, 20_000)),
    st.recursive(
        st.one_of(st.integers(-5, 5), st.text(max_size=8)),
        lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=5)),
    ),
)
results = st.one_of(
    contents,
    st.builds(lambda text: ToolMessage(text, tool_call_id="call_1", id="m"), st.text(max_size=5000)),
    st.builds(lambda text: Command(update={"text": text}, goto="x"), st.text(max_size=5000)),
)


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def bench(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Bench]:
    async with open_bench(request.param, dsn, schema) as bench:
        yield bench


def recorded(outcome: Outcome) -> Recorded:
    """As if an outcome had been written and read."""
    execution: Any = ToolExecution(*["t", "key", "read", outcome.status, 1], *[None] * 17)  # type: ignore[arg-type]
    return Recorded(execution, None, "intent", 0, True, outcome.result_type, outcome.result)


@given(results, st.booleans())
def test_what_is_recorded_comes_back(result: Any, is_parent: bool) -> None:
    codec = ValueCodec()
    given = ParentAnswer(result) if is_parent else result
    outcome = success(codec, ToolSettings(), "read", given)
    assert (outcome.result_type or "").startswith("frame/")
    found = restore(codec, recorded(outcome))
    assert isinstance(found, ParentAnswer) == is_parent
    assert (found.command if is_parent else found) == result
    # As it was stored before there were frames.
    kind, data = codec.dumps("result", result)
    before = Outcome("success", ("parent/" if is_parent else "") + kind, data)
    found = restore(codec, recorded(before))
    assert (found.command if is_parent else found) == result


@given(st.text(max_size=2000), st.data())
def test_an_altered_result_is_not_answered(text: str, data: st.DataObject) -> None:
    codec = ValueCodec()
    outcome = success(codec, ToolSettings(), "read", text)
    stored = bytearray(outcome.result or b"")
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    altered = Outcome("success", outcome.result_type, bytes(stored))
    try:
        found = restore(codec, recorded(altered))
    except (CorruptStateError, UnreadableFormatError):
        # The altered byte may be the one that names the format.
        return
    assert found == text


async def read_a_book(bench: Bench) -> tuple[Any, list[str]]:
    ran: list[str] = []

    def read(title: str) -> str:
        """Read a book."""
        ran.append(title)
        return BOOK

    graph = bench.agent([tool_of(bench, "read", read)], READ)
    await bench.invoke(graph, ask(), thread())
    return graph, ran


async def replay(bench: Bench, graph: Any) -> Any:
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    return (await bench.invoke(graph, None, past))["messages"][2].content


async def test_a_large_result_is_small_in_the_table(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    graph, ran = await read_a_book(bench)
    assert connection.execute(
        f"SELECT octet_length(result) < {len(BOOK) // 50}, pg_column_size(result) < {len(BOOK) // 50} "
        f"FROM {schema}.tool_executions"
    ).fetchall() == [(True, True)]
    whole = await bench.do(bench.ledger.result, "pgstate:tool/t/call_1")
    assert whole.content == BOOK
    assert await replay(bench, graph) == BOOK
    assert ran == ["A. K."]


async def test_a_result_from_before_there_were_frames_is_read(bench: Bench, connection: psycopg.Connection) -> None:
    graph, ran = await read_a_book(bench)
    whole = await bench.do(bench.ledger.result, "pgstate:tool/t/call_1")
    connection.execute(
        f"UPDATE {bench.saver.schema}.tool_executions SET (result_type, result) = (%s, %s)",
        ValueCodec().dumps("result", whole),
    )
    assert await bench.do(bench.ledger.result, "pgstate:tool/t/call_1") == whole
    assert await replay(bench, graph) == BOOK
    assert ran == ["A. K."]


async def test_a_damaged_result_is_not_answered_and_nothing_runs(bench: Bench, connection: psycopg.Connection) -> None:
    graph, ran = await read_a_book(bench)
    connection.execute(
        f"UPDATE {bench.saver.schema}.tool_executions SET result = overlay(result PLACING '\\xff'::bytea FROM 30)"
    )
    with pytest.raises(CorruptStateError):
        await bench.do(bench.ledger.result, "pgstate:tool/t/call_1")
    with pytest.raises(CorruptStateError):
        await replay(bench, graph)
    assert ran == ["A. K."]


async def test_a_copy_answers_with_the_whole_result(bench: Bench) -> None:
    await read_a_book(bench)
    await (bench.saver.acopy_thread if bench.is_async else bench.do)(
        *([] if bench.is_async else [bench.saver.copy_thread]), "t", "u"
    )
    assert (await bench.do(bench.ledger.result, "pgstate:tool/u/call_1")).content == BOOK
