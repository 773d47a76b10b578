"""What it costs to record a run: the same conversation with the record on, and with the saver alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from langgraph.callbacks import GraphCallbackHandler
from psycopg_pool import ConnectionPool

from benchmarks.contestants import OUR_OPTIONS
from benchmarks.conversation import Dialogue, build_graph
from benchmarks.measure import LISTENER, OURS, PLAIN, CaseResult, MismatchError, Plan, quiet
from benchmarks.server import Server
from langgraph_pgstate import PGState, PGStateSaver

NAME = "recording"
TITLE = "A superstep at 200 messages, with the record on"
_LENGTH = 200
_TURNS = 10


class Listener(GraphCallbackHandler):
    """Hears everything and does nothing."""

    run_inline = True


def run(server: Server, plan: Plan) -> CaseResult:
    """Turns of one conversation, taken by each contestant in turn from the same length on."""
    result = CaseResult(NAME, TITLE)
    result.notes.append(
        "Runs, spans, events and messages are written. The listener is a callback handler that does nothing: what "
        "LangChain and LangGraph themselves spend as soon as anybody listens."
    )
    rounds = plan.rounds * 2
    with ExitStack() as stack:

        def pool() -> ConnectionPool[Any]:
            return stack.enter_context(
                ConnectionPool(server.dsn, kwargs=OUR_OPTIONS, min_size=2, max_size=10, open=True)
            )

        plain = PGStateSaver(pool(), schema=stack.enter_context(server.schema(PLAIN)))
        heard = PGStateSaver(pool(), schema=stack.enter_context(server.schema(LISTENER)))
        state = PGState(pool(), schema=stack.enter_context(server.schema(OURS)))
        stack.callback(state.close)
        for saver in (plain, heard, state.saver):
            saver.setup()
        graphs = {
            PLAIN: build_graph(plain),
            LISTENER: build_graph(heard).with_config(callbacks=[Listener()]),
            OURS: state.record(build_graph(state.saver)),
        }
        metric = result.metric("step/200", "superstep at 200 messages", "ms")
        for number in range(rounds + 1):
            dialogues = {name: Dialogue(graph, f"recording-{number}") for name, graph in graphs.items()}
            for dialogue in dialogues.values():
                dialogue.take_until(_LENGTH)
            times = dict.fromkeys(graphs, 0.0)
            steps = dict.fromkeys(graphs, 0)
            with quiet():
                for _ in range(_TURNS):
                    for name in plan.shuffled(list(graphs)):
                        question = dialogues[name].question()
                        times[name] += _timed(dialogues[name].take, question)
                        steps[name] += dialogues[name].supersteps
            if number:
                for name, seconds in times.items():
                    metric.add(name, seconds / steps[name] * 1000)
        _check(state, f"recording-{rounds}")
    return result


def _timed(call: Callable[[Any], None], argument: Any) -> float:
    start = perf_counter()
    call(argument)
    return perf_counter() - start


def _check(state: PGState, thread_id: str) -> None:
    """The record is what the state says."""
    state.flush()
    said = [message.message_id for message in state.messages.conversation(thread_id)]
    found = state.saver.get_tuple({"configurable": {"thread_id": thread_id}})
    kept = [message.id for message in found.checkpoint["channel_values"]["messages"]] if found else []
    runs = state.runs.list(thread_id=thread_id, limit=1).items
    if said != kept or not runs or runs[0].status != "success":
        raise MismatchError(f"recording: the record has {len(said)} messages, the state {len(kept)}")
