"""Many short conversations at the same time: what they write and what they occupy."""

from __future__ import annotations

import uuid

from benchmarks.contestants import open_session
from benchmarks.conversation import Dialogue, build_graph
from benchmarks.measure import OURS, UPSTREAM, CaseResult, Plan, require_equal
from benchmarks.server import Server

NAME = "threads"
TITLE = "Many conversations of 50 messages, in turns, through the same graph"
_MESSAGES = 50


def run(server: Server, plan: Plan) -> CaseResult:
    """Bytes only: they vary little, so two rounds at most."""
    count = plan.pick(200, 25)
    result = CaseResult(NAME, f"{TITLE} ({count} threads)")
    result.notes += [
        "CHECKPOINT first, tables empty: full-page images are in the figure, but new pages need none.",
        "One more turn of every thread after another CHECKPOINT: the images of all pages it touches are in the figure.",
    ]
    for number in range(min(plan.rounds, plan.pick(2, 1))):
        threads = [str(uuid.UUID(int=plan.rng.getrandbits(128), version=4)) for _ in range(count)]
        states = {}
        for name in plan.shuffled((OURS, UPSTREAM)):
            with open_session(name, server) as session:
                assert session.schema is not None
                graph = build_graph(session.saver)
                warm_up = Dialogue(graph, f"warm-up-{number}")
                warm_up.take(warm_up.question())
                server.empty(session.schema)
                dialogues = [Dialogue(graph, thread) for thread in threads]
                server.checkpoint()
                before = server.wal_position()
                while dialogues[-1].length < _MESSAGES:
                    for dialogue in dialogues:
                        dialogue.take(dialogue.question())
                wal = server.wal_position() - before
                label = f"{count} threads of {_MESSAGES} messages"
                result.metric("wal", f"WAL of {label}", "bytes").add(name, wal)
                result.metric("disk", f"disk of {label}", "bytes").add(name, server.size(session.schema))
                server.checkpoint()
                before = server.wal_position()
                for dialogue in dialogues:
                    dialogue.take(dialogue.question())
                wal = server.wal_position() - before
                result.metric("wal-turn", f"WAL of {count} more turns after a CHECKPOINT", "bytes").add(name, wal)
                sample = dialogues[:: max(1, count // 10)]
                states[name] = [graph.get_state(dialogue.config).values for dialogue in sample]
        require_equal("threads: states", states)
    return result
