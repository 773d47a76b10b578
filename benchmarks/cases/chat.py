"""One conversation growing to 1000 messages through a real graph: superstep latency, WAL, disk, bytes on the wire."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.contestants import Session, open_session
from benchmarks.conversation import Dialogue, build_graph
from benchmarks.measure import MEMORY, OURS, UPSTREAM, CaseResult, Metric, Plan, quiet, require_equal, slope, timed
from benchmarks.proxy import open_proxy
from benchmarks.server import Server

NAME = "chat"
TITLE = "A tool-calling agent's conversation, grown by the graph itself"
_SIZES = (50, 200, 1000)
_CURVE = (20, 50, 100, 200, 500, 1000)
_WINDOW_TURNS = 10
_WARM_UP_TURNS = 12


@dataclass(slots=True)
class _Player:
    """A contestant, its conversation, and the WAL that conversation has written."""

    session: Session
    dialogue: Dialogue
    wal: int = 0
    empty_size: int = 0
    step_seconds: list[float] = field(default_factory=list)


def run(server: Server, plan: Plan) -> CaseResult:
    """Grow the conversation once per round, all contestants taking turns, and once more through a counting proxy."""
    result = CaseResult(NAME, TITLE)
    result.notes += [
        "A superstep is one checkpoint: total time of a turn by its checkpoints (5 with a tool call), LangGraph's own"
        " work included, default durability.",
        "Disk is tables, indexes and TOAST; growth exponents are over the bytes above the empty tables.",
        "InMemorySaver serializes and keeps every whole version in this process.",
    ]
    for number in range(plan.pick(plan.rounds, 1)):
        _grow(server, plan, result, number)
    _count_wire_bytes(server, plan, result)
    return result


def _grow(server: Server, plan: Plan, result: CaseResult, number: int) -> None:
    with ExitStack() as stack:
        players: list[_Player] = []
        for name in plan.shuffled(plan.pick((OURS, UPSTREAM, MEMORY), (OURS, UPSTREAM))):
            session = stack.enter_context(open_session(name, server))
            graph = build_graph(session.saver)
            warm_up = Dialogue(graph, f"warm-up-{number}")
            for _ in range(_WARM_UP_TURNS):
                warm_up.take(warm_up.question())
            player = _Player(session, Dialogue(graph, f"chat-{number}"))
            if session.schema:
                server.empty(session.schema)
                player.empty_size = server.size(session.schema)
            players.append(player)
        server.checkpoint()
        storage: dict[str, dict[int, tuple[int, int]]] = {}
        for target in sorted({*_CURVE, *_SIZES}):
            _advance(server, plan, players, target)
            for player in players:
                if player.session.schema:
                    size = server.size(player.session.schema)
                    storage.setdefault(player.session.name, {})[target] = (player.wal, size)
                    if target in _SIZES:
                        _metric(result, "disk", target).add(player.session.name, size)
                        _metric(result, "wal", target).add(player.session.name, player.wal)
            if target in _SIZES:
                _measure_steps(server, plan, players, result, target)
        _check(players)
        _add_growth(result, storage, {player.session.name: player.empty_size for player in players})


def _advance(server: Server, plan: Plan, players: list[_Player], length: int) -> None:
    """One turn of each contestant, again and again: whatever slows the machine down slows all of them."""
    while any(player.dialogue.length < length for player in players):
        for player in plan.shuffled(players):
            question = player.dialogue.question()
            before = server.wal_position()
            seconds = timed(player.dialogue.take, question)
            player.wal += server.wal_position() - before
            player.step_seconds.append(seconds / player.dialogue.supersteps)


def _measure_steps(server: Server, plan: Plan, players: list[_Player], result: CaseResult, size: int) -> None:
    """The turns that follow a length of `size` messages."""
    for player in players:
        player.step_seconds.clear()
    end = players[0].dialogue.length + 4 * _WINDOW_TURNS
    with quiet():
        _advance(server, plan, players, end)
    metric = result.metric(f"step/{size}", f"superstep at {size} messages", "ms")
    for player in players:
        metric.add(player.session.name, statistics.median(player.step_seconds) * 1000)


def _metric(result: CaseResult, what: str, size: int) -> Metric:
    return result.metric(f"{what}/{size}", f"{'WAL' if what == 'wal' else what} at {size} messages", "bytes")


def _check(players: list[_Player]) -> None:
    states = {player.session.name: player.dialogue.graph.get_state(player.dialogue.config) for player in players}
    require_equal("chat: state", {name: state.values for name, state in states.items()})
    require_equal("chat: step", {name: (state.metadata or {})["step"] for name, state in states.items()})


def _add_growth(
    result: CaseResult, storage: dict[str, dict[int, tuple[int, int]]], empty_sizes: dict[str, int]
) -> None:
    for index, what in enumerate(("WAL", "disk")):
        metric = result.metric(f"exponent/{what.lower()}", f"growth exponent of {what}, 50 to 1000 messages", "")
        for name, points in storage.items():
            empty = empty_sizes[name] if what == "disk" else 0
            metric.add(name, slope([(size, points[size][index] - empty) for size in _SIZES]))
            curve = [(float(size), float(values[index])) for size, values in points.items()]
            result.curves.setdefault(what, {})[name] = curve


def _count_wire_bytes(server: Server, plan: Plan, result: CaseResult) -> None:
    sizes = plan.pick(_SIZES, _SIZES[:2])
    for name in (OURS, UPSTREAM):
        with open_proxy(server.address()) as proxy, open_session(name, server, dsn=server.dsn_through(proxy.port)) as s:
            dialogue = Dialogue(build_graph(s.saver), "wire")
            start, _ = proxy.count()
            for size in sizes:
                dialogue.take_until(size)
                result.metric(f"wire/{size}", f"bytes on the wire to {size} messages", "bytes").add(
                    name, proxy.count()[0] - start
                )
