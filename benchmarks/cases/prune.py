"""prune("keep_latest") of one long thread."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.contestants import open_session
from benchmarks.conversation import Chain, messages
from benchmarks.measure import OURS, UPSTREAM, CaseResult, Plan, quiet, require_equal, timed
from benchmarks.server import Server

NAME = "prune"
TITLE = 'prune(strategy="keep_latest") of a thread whose every checkpoint added a message'


def run(server: Server, plan: Plan) -> CaseResult:
    """A new thread for each round; the first one is the warm-up."""
    count = plan.pick(500, 200)
    result = CaseResult(NAME, TITLE)
    metric = result.metric("keep_latest", f"keep_latest of {count} checkpoints", "ms")
    with ExitStack() as stack:
        sessions = [stack.enter_context(open_session(name, server, single=True)) for name in (OURS, UPSTREAM)]
        for number in range(plan.rounds + 1):
            chain = Chain(f"prune-{number}")
            conversation = messages(f"prune-{number}", count)
            for length in range(1, count + 1):
                put = chain.next("messages", conversation[:length])
                for session in sessions:
                    session.saver.put(*put.arguments())
            left = {}
            for session in plan.shuffled(sessions):
                thread_id = chain.config["configurable"]["thread_id"]
                with quiet():
                    seconds = timed(session.saver.prune, [thread_id], strategy="keep_latest")
                if number:
                    metric.add(session.name, seconds * 1000)
                left[session.name] = [
                    one.checkpoint["channel_values"]["messages"] for one in session.saver.list(chain.config)
                ]
            require_equal("prune: what is left", {"expected": [conversation]} | left)
    return result
