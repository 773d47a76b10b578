"""What the ledger keeps of results: compressed, with a checksum, exactly; and what was stored before that."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END
from langgraph.types import Command
from support.ledger import LEDGERS, Bench, ask, calls, open_bench, thread, tool_of

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError, NotFoundError, UnreadableFormatError
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.tools import ToolSettings
from langgraph_pgstate.tools.executions import Outcome, Recorded
from langgraph_pgstate.tools.results import ParentAnswer, masked, restore, success
from tests.tools.test_ledger import rows
from tests.tools.test_ledger_more import of_api, one_node

READ = calls(("call_1", "read", {"title": "A. K."}))


BOOK = "All happy families are alike. " * 10_000

pytestmark = pytest.mark.smoke

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


def recorded(outcome: Outcome) -> Recorded:
    """As if an outcome had been written and read."""
    execution: Any = ToolExecution(*["t", "key", "read", outcome.status, 1], *[None] * 18)  # type: ignore[arg-type]
    return Recorded(execution, None, "intent", 0, True, outcome.result_type, outcome.result)


@pytest.mark.slow
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


@pytest.mark.slow
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


async def test_a_command_is_answered_exactly(bench: Bench) -> None:
    ran = []

    def move(to: str) -> Any:
        """Go somewhere."""
        ran.append(to)
        note = ToolMessage("moved", tool_call_id="call_1")
        return Command(update={"messages": [note]}, goto=END)

    graph = bench.agent([tool_of(bench, "move", move)], calls(("call_1", "move", {"to": "x"})))
    first = await bench.invoke(graph, ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    again = await bench.invoke(graph, None, past)
    assert [message.content for message in first["messages"]] == [message.content for message in again["messages"]]
    assert ran == ["x"]


async def test_a_large_result_is_kept_at_the_door(bench: Bench) -> None:
    book = "All happy families are alike. " * 10_000

    def read(title: str) -> str:
        """Read a book."""
        return book

    bench.ledger.policy("read", result_limit=1000)
    graph = bench.agent([tool_of(bench, "read", read)], calls(("call/1 %", "read", {"title": "A. K."})))
    state = await bench.invoke(graph, ask(), thread("t/ü"))
    shown = state["messages"][2].content
    assert len(shown) < 1000
    assert shown.startswith("All happy families")
    reference = shown.split("kept as ")[1].rstrip("]")
    whole = await bench.do(bench.ledger.result, reference)
    assert whole.content == book
    with pytest.raises(NotFoundError):
        await bench.do(bench.ledger.result, reference + "x")
    with pytest.raises(ConfigurationError):
        await bench.do(bench.ledger.result, "somewhere")


async def test_what_json_cannot_say_is_recorded_all_the_same(bench: Bench, connection: psycopg.Connection) -> None:
    def echo(text: str) -> str:
        """Say it again."""
        return text

    odd = "a\0b\ud800c"
    graph = bench.agent([tool_of(bench, "echo", echo)], calls(("call_1", "echo", {"text": odd, "n": float("nan")})))
    state = await bench.invoke(graph, ask(), thread())
    assert state["messages"][2].content == odd
    assert rows(connection, bench.saver.schema, "arguments, preview") == [({"text": "ab?c", "n": None}, "ab?c")]


# Large results


class Mute:
    """A result without a text."""

    def __repr__(self) -> str:
        raise ValueError("mute")


@pytest.mark.parametrize("api", LEDGERS)
@pytest.mark.parametrize("ends", ["returned", "raised", "mute"])
async def test_an_outcome_whose_text_cannot_be_made_is_recorded_all_the_same(
    api: type, ends: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def redact(kind: str, value: Any) -> Any:
        if kind == "preview" and ends != "mute":
            raise KeyError("a mistake")
        return value

    def charge(order: str) -> Any:
        if ends == "raised":
            raise OSError("declined")
        return Mute() if ends == "mute" else "charged"

    async with open_bench(api, dsn, schema, settings=ToolSettings(redact=redact)) as bench:
        once = bench.ledger.once(of_api(bench, charge))
        graph = one_node(bench, lambda state: iter([once("o1")]) if bench.is_async else (once("o1") for _ in "1"))
        with pytest.raises(OSError, match="declined") if ends == "raised" else nullcontext():
            await bench.invoke(graph, ask(), thread())
    told = rows(connection, schema, "status, preview, error_type, error_message")
    assert told == [("error", None, "OSError", None) if ends == "raised" else ("success", None, None, None)]


async def test_a_large_result_that_is_no_text_is_kept_at_the_door(bench: Bench) -> None:
    picture = [{"type": "image", "base64": "x" * 50_000, "mime_type": "image/png"}]

    def look(at: str) -> Any:
        """Look at something."""
        return (
            ToolMessage(picture, tool_call_id="call_1")
            if at == "a"
            else ToolMessage(  # type: ignore[arg-type]
                "small", tool_call_id="call_1", artifact={"rows": list(range(20_000))}
            )
        )

    bench.ledger.policy("look", result_limit=1000)
    for at in "ab":
        graph = bench.agent([tool_of(bench, "look", look)], calls(("call_1", "look", {"at": at})))
        state = await bench.invoke(graph, ask(), thread(at))
        shown = state["messages"][2]
        assert len(str(shown)) < 2000
        whole = await bench.do(bench.ledger.result, shown.content.split("kept as ")[1].rstrip("]"))
        assert (whole.content, whole.artifact) == (
            (picture, None) if at == "a" else ("small", {"rows": list(range(20_000))})
        )


BINARY = bytes(range(256)) * 4


async def test_bytes_are_counted_as_such(bench: Bench) -> None:
    """Not as the text that Python prints for them."""

    def draw(q: str) -> tuple[str, bytes]:
        """Draw a picture."""
        return "here", BINARY

    picture = tool(of_api(bench, draw), response_format="content_and_artifact")
    bench.ledger.policy("draw", result_limit=1028)
    state = await bench.invoke(bench.agent([picture], calls(("c", "draw", {"q": "a"}))), ask(), thread())
    assert (state["messages"][2].content, state["messages"][2].artifact) == ("here", BINARY)
    bench.ledger.policy("draw", result_limit=1027)
    state = await bench.invoke(bench.agent([picture], calls(("c", "draw", {"q": "a"}))), ask(), thread("u"))
    assert "[… 1,028 bytes in all" in state["messages"][2].content


@dataclass
class Page:
    """What a tool may return."""

    body: bytes


@pytest.mark.parametrize(
    ("held", "size"),
    [
        ({"rows": [{"thumbnail": BINARY}]}, 1024 + len('{"rows":[{"thumbnail":null}]}')),
        ((bytearray(BINARY), memoryview(BINARY)), 2048 + len("[null,null]")),
        (Page(BINARY), 1024 + len('{"body":null}')),
        (array("d", range(100)), 800),
        ({"none": None, "empty": b""}, len('{"none":null,"empty":null}')),
        ("ä", 2),
        ([{1, 2}, object], len(f'[[1,2],"{object}"]')),
    ],
)
def test_bytes_are_counted_wherever_they_are_held(held: Any, size: int) -> None:
    settings = ToolSettings(preview_length=10)
    message = ToolMessage("", tool_call_id="c", artifact=held)
    assert masked(message, size, "ref", settings) is message
    assert f"[… {size:,} bytes in all" in masked(message, size - 1, "ref", settings).content
    if not isinstance(held, str):
        assert masked(held, size, "ref", settings) is held
        assert masked(held, size - 1, "ref", settings)["bytes"] == size
