"""The verifier: compares what PostgreSQL holds with the journal of what callers were told."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR

from langgraph_pgstate import PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.record.types import action_token

from .agents import PROMISES, Outside, Profile, State, build
from .findings import Finding
from .journal import Journal, Line, digest, read
from .world import World, encryption_of

# What a caller may be told while faults are injected, while none is, and when nobody else is there.
_IN_STORM = {
    "AlreadyAnsweredError",
    "LeaseHeldError",
    "LeaseLostError",
    "NotFoundError",
    "StaleHeadError",
    "ThreadDeletedError",
    "ToolBusyError",
    "ToolOutcomeUnknownError",
    "ToolOvertakenError",
    "UnavailableError",
}
_IN_CALM = {"AlreadyAnsweredError", "LeaseHeldError", "LeaseLostError", "NotFoundError", "StaleHeadError"}
_IN_RECOVERY = {"ToolOutcomeUnknownError"}
_DISK_FULL = "53100"
_REMOVED_TWICE = "Attempting to delete a message with an ID that doesn't exist"
# Faults that may keep a process from learning what its statement did.
_OF_LINES = ("terminate", "lose", "cut", "sever", "fast", "immediate", "disk", "delay")
# A statement of a process that was killed goes on in the server for a while.
_LINGERS, _UNKNOWN_END = 5.0, 20.0
_MOST_LEAVES = 6
_OF_STATES = ("checkpoints", "writes", "segments", "labels", "projections", "messages")
_OF_THREADS = (*_OF_STATES, "leases", "answers", "runs", "spans", "tool_executions", "events", "journal")

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of an operator, as the journal has it."""

    op: str
    thread: str
    start: float
    end: float
    is_done: bool
    line: Line


class Verifier:
    """Compares one schema with the journals of the processes that worked on it.

    Args:
        connection: In autocommit, or in a transaction, which nothing commits then.
        schema: The tables.
        seed: Of the epoch.
        directory: Where the journals are.
        world: Whose rows they are, where tenants are kept apart, and whether content is encrypted.

    Attributes:
        tolerated: What differs for a known reason outside of this package, by kind.
        compared: How much was compared, by kind.
    """

    def __init__(
        self, connection: psycopg.Connection, schema: str, seed: str, directory: Path, world: World | None = None
    ) -> None:
        self._connection, self._schema, self._seed = connection, schema, seed
        self._directory = directory
        self._options: dict[str, Any] = {}
        if world is not None:
            self._options = {"tenant": world.tenant, "encryption": encryption_of(world.is_encrypted)}
        self._state = PGState(connection, schema=schema, **self._options)
        self.lines = read(directory)
        self._by: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            self._by[line["what"]].append(line)
        self._storm = next((line["at"] for line in self._by["storm"]), float("inf"))
        self._operations = self._read_operations()
        self._tries: dict[Key, Line] = {_key(line): line for line in self._by["try"]}
        self._tried = {(_family(thread), ns, id): line for (thread, ns, id), line in self._tries.items()}
        self._writers: dict[Key, set[str | None]] = defaultdict(set)
        self._stored: dict[str, dict[tuple[str, str], CheckpointTuple]] = {}
        self._graphs: dict[Profile, Any] = {}
        self._known: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._findings: list[Finding] = []
        self.tolerated: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()

    def verify(self) -> list[Finding]:
        """Run all checks."""
        self._state.flush()
        self._state.runs.failed()
        known = {line["thread"] for line in self.lines if "thread" in line}
        known |= {row[0] for row in self._rows("SELECT DISTINCT thread_id FROM {}.checkpoints")}
        for thread in sorted(known):
            try:
                found = list(self._state.saver.list({"configurable": {"thread_id": thread}}))
            except PGStateError as error:
                self._find("unreadable", thread, str(error))
                continue
            self._stored[thread] = {(_ns(one), _id(one)): one for one in found}
        for check in (
            self._told,
            self._checkpoints,
            self._states,
            self._writes,
            self._lines_of_history,
            self._conversations,
            self._effects,
            self._bookings,
            self._unknowns,
            self._integrity,
            self._maintained,
            self._runs,
        ):
            check()
        return self._findings

    def excerpt(self, finding: Finding, count: int = 24) -> Iterator[str]:
        """Lines on a finding's thread and on faults, around the last that names what its text does."""
        words = {word.strip("'\",:") for word in finding.text.split()}
        chosen = [line for line in self.lines if line.get("thread") == finding.thread or line["what"] == "fault"]
        named = [n for n, line in enumerate(chosen) if any(isinstance(v, str) and v in words for v in line.values())]
        last = min(len(chosen), (named[-1] if named else len(chosen)) + count // 2)
        for line in chosen[max(0, last - count) : last]:
            yield json.dumps({key: value for key, value in line.items() if key != "text"})[:300]

    def _find(self, kind: str, thread: str, text: str) -> None:
        self._findings.append(Finding(kind, thread, text))

    def _rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(query.replace("{}", self._schema).encode(), arguments or None).fetchall()

    def _read_operations(self) -> list[_Operation]:
        ends = {line["id"]: line["at"] for line in self._by["done"]}
        failed: dict[str, list[float]] = defaultdict(list)
        for line in self._by["failed"]:
            failed[line["by"]].append(line["at"])
        found = []
        for line in self._by["op"]:
            is_done = line["id"] in ends
            after = (at + _LINGERS for at in failed[line["by"]] if at > line["at"])
            end = ends[line["id"]] if is_done else next(after, line["at"] + _UNKNOWN_END)
            found.append(_Operation(line["op"], line["thread"], line["at"], end, is_done, line))
        return found

    def _operations_on(self, thread: str, *ops: str) -> Iterator[_Operation]:
        return (one for one in self._operations if one.thread == thread and one.op in ops)

    def _is_deleted_after(self, thread: str, at: float) -> bool:
        return any(one.end > at for one in self._operations_on(thread, "delete"))

    def _is_emptied(self, end: Line) -> bool:
        """Whether a run that was to go on may have found nothing to go on from: an operator has removed it."""
        began = next((line["at"] for line in self._by["run"] if line["run"] == end.get("run")), 0.0)
        removals = self._operations_on(end["thread"], "delete", "prune", "rollback")
        return any(one.start < end["at"] and one.end > began - 1 for one in removals)

    def _profile(self, thread: str) -> Profile:
        return Profile.of(self._seed, thread)

    def _graph(self, profile: Profile) -> Any:
        if profile not in self._graphs:
            journal = Journal(self._directory, "verifier")
            builder = build(profile, journal, Outside(self._directory / "outside", journal), None, is_async=False)
            self._graphs[profile] = builder.compile(checkpointer=self._state.saver)
        return self._graphs[profile]

    def _values(self, thread: str, id: str) -> dict[str, Any] | None:
        if (thread, id) not in self._known:
            self._known[thread, id] = self._read_values(thread, id)
        return self._known[thread, id]

    def _read_values(self, thread: str, id: str) -> dict[str, Any] | None:
        if not self._profile(thread).is_delta:
            stored = self._stored[thread]["", id].checkpoint["channel_values"]
            named = {name: stored[name] for name in State.__annotations__ if name in stored}
            return {"messages": [], "notes": [], **named}
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id}}
        try:
            values: dict[str, Any] = self._graph(self._profile(thread)).get_state(config).values
        except Exception as error:
            if not self._is_mixed(thread, str(error)):
                self._find("unreadable", thread, f"{id}: {type(error).__name__}: {error}")
            return None
        return values

    def _is_mixed(self, thread: str, text: str) -> bool:
        """Whether LangGraph cannot rebuild a DeltaChannel because two runs from one checkpoint removed one message.

        As in `_is_raced`, each of them sees what the other wrote there.
        """
        if _REMOVED_TWICE not in text or not self._profile(thread).is_delta:
            return False
        family = _family(thread)
        is_mixed = any(place[0] == family and len(runs) > 1 for place, runs in self._writers_at().items())
        self.tolerated["a message removed by two runs"] += is_mixed
        return is_mixed

    def _leaves(self, thread: str) -> list[str]:
        """The newest leaves of the root namespace, newest first."""
        stored = [one for (ns, _), one in self._stored.get(thread, {}).items() if not ns]
        parents = {_parent(one) for one in stored}
        return sorted((_id(one) for one in stored if _id(one) not in parents), reverse=True)[:_MOST_LEAVES]

    # What callers were told at once

    def _told(self) -> None:
        """No caller got an error that nothing explains."""
        for line in self._by["end"] + self._by["failed"]:
            error, job = line.get("error"), line.get("job", "run")
            if error is None or line.get("told") == "cancelled":
                continue
            is_recovery = line["by"].startswith("recover")
            allowed = _IN_RECOVERY if is_recovery else _IN_CALM if line["at"] < self._storm else _IN_STORM
            is_full = allowed is _IN_STORM and line.get("sqlstate") == _DISK_FULL
            # A fork or copy onto a thread with a history, and what a person decides twice.
            refusal = "AlreadySettledError" if job == "settle" else "ConfigurationError"
            is_refused = error == refusal and job in ("fork", "copy", "settle")
            is_deleted = error == "ThreadDeletedError" and self._is_deleted_after(line["thread"], 0)
            is_emptied = error in ("EmptyInputError", "EmptiedError") and self._is_emptied(line)
            is_mixed = self._is_mixed(line["thread"], str(line.get("text")))
            is_late = error == "ToolTimeoutError" and line["tool"] == "hold"
            if not (error in allowed or is_full or is_refused or is_deleted or is_emptied or is_mixed or is_late):
                when = "in recovery" if is_recovery else "in calm" if allowed is _IN_CALM else "in the storm"
                self._find(f"error {error}", line["thread"], f"{job} {when}: {line.get('text')} ({line['of']})")

    # Checkpoints

    def _checkpoints(self) -> None:
        """Every acknowledged checkpoint is there, unless an operation may have removed it, and equal."""
        acks = {_key(line): line for line in self._by["ack"]}
        self.compared["acknowledged checkpoints"] = len(acks)
        self.compared["stored checkpoints"] = sum(map(len, self._stored.values()))
        labels = {(line["thread"], line["id"]): line["at"] for line in self._by["labelled"]}
        for key, line in acks.items():
            thread, ns, id = key
            is_gone = thread in self._stored and (ns, id) not in self._stored[thread]
            if is_gone and not self._may_be_gone(self._tries[key], labels.get((thread, id))):
                self._find("checkpoint lost", thread, f"{ns!r} {id}, acknowledged by {line['by']}")
            deleted = [one for one in self._operations_on(thread, "delete") if one.is_done and one.start > line["at"]]
            if deleted and (ns, id) in self._stored.get(thread, {}):
                self._find("deletion undone", thread, f"{ns!r} {id} is there again")
        for thread, stored in self._stored.items():
            for (ns, id), one in stored.items():
                tried = self._tried.get((_family(thread), ns, id))
                if tried is None:
                    self._find("checkpoint unknown", thread, f"{ns!r} {id} was never put")
                    continue
                if digest(one.checkpoint["channel_values"]) != tried["digest"]:
                    self._find("checkpoint differs", thread, f"{ns!r} {id}: its values are not those that were put")
                # One that a prune has taken is not named.
                if _parent(one) != tried["parent"] and (_parent(one) or (ns, tried["parent"]) in stored):
                    self._find("parent differs", thread, f"{ns!r} {id}: {_parent(one)}, not {tried['parent']}")
        for one in (one for one in self._operations if one.op in ("fork", "copy") and one.is_done):
            source, target = one.line["args"][0], one.line["args"][-1]
            expected = one.line["args"][1:2]
            if one.op == "copy":
                expected = [
                    id for (thread, ns, id), line in acks.items() if thread == source and line["at"] < one.start
                ]
                expected = [id for id in expected if ("", id) in self._stored.get(source, {})]
            for id in expected:
                tried = {"thread": target, "ns": "", "id": id, "at": one.start, "run": None}
                if ("", id) not in self._stored.get(target, {}) and not self._may_be_gone(tried, None):
                    self._find(f"{one.op} incomplete", target, f"{id} of {source} is not there")

    def _may_be_gone(self, tried: Line, labelled_at: float | None) -> bool:
        thread = tried["thread"]
        for one in self._operations_on(thread, "delete", "rollback", "prune"):
            if one.op == "rollback":
                if one.line["run"] == tried["run"] or self._was_of_run(tried, one.line["run"]):
                    return True
            elif tried["at"] < one.end:
                if one.op == "delete" or tried["ns"]:
                    return True
                keep = one.line.get("keep_last", 1)
                newest = sorted(
                    (
                        id
                        for (t, ns, id), line in self._tries.items()
                        if (t, ns) == (thread, "") and line["at"] < one.end
                    ),
                    reverse=True,
                )
                if tried["id"] not in newest[:keep] and (labelled_at is None or labelled_at > one.start):
                    return True
        return False

    def _was_of_run(self, tried: Line, run: str) -> bool:
        """Whether a checkpoint was put by a process while that run was under way in it: its column may name it."""
        began = next((line for line in self._by["run"] if line["run"] == run), None)
        return began is not None and began["by"] == tried.get("by") and began["at"] < tried["at"]

    def _states(self) -> None:
        """Every state that LangGraph returned is the one that is stored."""
        seen: dict[tuple[str, str], dict[str, Line]] = defaultdict(dict)
        for line in self._by["state"]:
            seen[line["thread"], line["id"]].setdefault(line["digest"], line)
        for (thread, id), digests in seen.items():
            if ("", id) in self._stored.get(thread, {}):
                self.compared["returned states"] += 1
                values = self._values(thread, id)
                for wrong in digests.keys() - {digest(values)} if values is not None else ():
                    line = digests[wrong]
                    if self._is_raced(thread, id):
                        self.tolerated["state of a raced DeltaChannel"] += 1
                        continue
                    if self._is_cut_at_exit(line):
                        self.tolerated["state of a run that was cancelled before it stored its exit"] += 1
                        continue
                    self._find("state differs", thread, f"{id} as {line['how']} by {line['by']} is not what is stored")

    def _is_cut_at_exit(self, line: Line) -> bool:
        """Whether a state was streamed by a run with `durability="exit"` that was cancelled.

        LangGraph streams the state from before a superstep under the id that it then stores with what the superstep
        wrote, if the run is cut between the two.
        """
        ends = {end["run"]: end for end in self._by["end"]}
        for run in self._by["run"]:
            end = ends.get(run["run"], {"at": float("inf"), "told": "cancelled"})
            is_of_run = run["thread"] == line["thread"] and run["by"] == line["by"]
            if is_of_run and run["durability"] == "exit" and run["at"] < line["at"] < end["at"]:
                return bool(end["told"] == "cancelled")
        return False

    def _is_raced(self, thread: str, id: str) -> bool:
        """Whether, in a thread with a DeltaChannel, an ancestor was written to by another run than went on from there.

        LangGraph rebuilds the state of each branch from all writes that are stored where it begins, however late they
        come, some under one id; so two runs that go on at once from one checkpoint see each other's.
        """
        if not self._profile(thread).is_delta:
            return False
        writers = self._writers_at()
        stored = self._stored[thread]
        child = stored.get(("", id))
        while child is not None and (parent := _parent(child)) is not None:
            tried = self._tried.get((_family(thread), "", _id(child)))
            if writers[_family(thread), "", parent] - {tried and tried["run"]}:
                return True
            child = stored.get(("", parent))
        return False

    def _writers_at(self) -> dict[Key, set[str | None]]:
        """Return the runs that wrote at each checkpoint."""
        if not self._writers:
            for line in self._by["write"]:
                self._writers[_family(line["thread"]), line["ns"], line["id"]].add(line["run"])
        return self._writers

    def _writes(self) -> None:
        """What a task wrote, acknowledged, is there as one of its attempts had it."""
        attempts: dict[tuple[Key, str], list[list[list[str]]]] = defaultdict(list)
        for line in self._by["write"]:
            attempts[_key(line), line["task"]].append(line["writes"])
        for line in self._by["written"]:
            thread, ns, id = key = _key(line)
            one = self._stored.get(thread, {}).get((ns, id))
            if one is None or any(self._operations_on(thread, "rollback", "delete")):
                continue
            self.compared["acknowledged writes"] += 1
            found = [(channel, value) for task, channel, value in one.pending_writes or () if task == line["task"]]
            missing = set(line["channels"]) & set(WRITES_IDX_MAP) - {channel for channel, _ in found}
            ordinary = [[channel, digest(value)] for channel, value in found if channel not in WRITES_IDX_MAP]
            tried = [[w for w in writes if w[0] not in WRITES_IDX_MAP] for writes in attempts[key, line["task"]]]
            # Of a task that failed only the error is kept.
            expected = set() if ERROR in line["channels"] else set(line["channels"]) - set(WRITES_IDX_MAP)
            if missing or (expected and sorted(ordinary) not in map(sorted, tried)):
                self._find("writes lost", thread, f"{ns!r} {id} task {line['task']}: {line['channels']} are {ordinary}")

    def _lines_of_history(self) -> None:
        """A guarded thread's history is one line but for forks on purpose, and holds every turn; ids sort."""
        query = "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM {}.checkpoints"
        for thread, ns, id, parent in self._rows(f"{query} WHERE parent_checkpoint_id >= checkpoint_id"):
            self._find("order of ids", thread, f"{ns!r} {id} does not sort after its parent {parent}")
        forks = Counter((_family(line["thread"]), line["id"]) for line in self._by["fork"])
        for thread, stored in self._stored.items():
            if self._profile(thread).guard is None:
                continue
            children = Counter(_parent(one) for (ns, _), one in stored.items() if not ns)
            for parent, count in children.items():
                if parent is not None and count > 1 + forks[_family(thread), parent]:
                    self._find("guard passed", thread, f"{count} checkpoints go on from {parent}")
            if any(self._operations_on(thread, "delete", "rollback")):
                continue
            notes = {
                note for leaf in self._leaves(thread) for note in (self._values(thread, leaf) or {}).get("notes", ())
            }
            # A prune may take away branches that were left for a fork.
            if self._leaves(thread) and not any(family == _family(thread) for family, _ in forks):
                for line in (one for one in self._by["run"] if one["thread"] == thread and one.get("turn")):
                    if f"{line['turn']}." not in notes and self._told_of(line) == "success":
                        self._find("update lost", thread, f"turn {line['turn']} of run {line['run']}")

    def _told_of(self, run: Line) -> str | None:
        return next((line["told"] for line in self._by["end"] if line["run"] == run["run"]), None)

    # The record

    def _conversations(self) -> None:
        """The conversation at every leaf is what the state's channel holds."""
        for thread in self._stored:
            if not self._profile(thread).is_recorded:
                continue
            for leaf in self._leaves(thread):
                values = self._values(thread, leaf)
                if values is None:
                    continue
                expected = [(one.id, one.text) for one in values.get("messages", ())]
                self.compared["conversations"] += 1
                said = self._state.messages.conversation(thread, checkpoint_id=leaf)
                found = [(one.message_id, one.content) for one in said]
                if expected != found and self._is_raced(thread, leaf):
                    self.tolerated["conversation of a raced DeltaChannel"] += 1
                elif expected != found:
                    missing = [id for id, _ in expected if id not in dict(found)]
                    extra = [id for id, _ in found if id not in dict(expected)]
                    how = (
                        f"missing {missing}, extra {extra} of {len(expected)}" if missing or extra else "order or text"
                    )
                    self._find("conversation differs", thread, f"at {leaf}: {how}")

    def _runs(self) -> None:
        """Every run has ended as its caller was told; what was killed is known as crashed."""
        query = "SELECT thread_id, run_id, status, error_type FROM {}.runs"
        rows = {(thread, run): (status, error) for thread, run, status, error in self._rows(query)}
        of_runs = {self._tries[_key(line)]["run"] for line in self._by["ack"]}
        ends = {line["run"]: line for line in self._by["end"]}
        for (thread, run), (status, _) in rows.items():
            if status == "running":
                self._find("run goes on", thread, f"run {run} is running although all processes have ended")
        for line in self._by["run"]:
            thread, run, end = line["thread"], line["run"], ends.get(line["run"])
            self.compared["runs"] += 1
            if not self._profile(thread).is_recorded or self._is_deleted_after(thread, line["at"]):
                continue
            if any(one.line["run"] == run for one in self._operations_on(thread, "rollback")):
                continue
            status, error = rows.get((thread, run), (None, None))
            told = None if end is None else end["told"]
            is_refused = end is not None and end.get("error") in ("LeaseHeldError", "ThreadDeletedError")
            if told is None or is_refused:
                continue
            if status is None and run in of_runs:
                self._find("run missing", thread, f"run {run} was told {told}")
            is_wrong = told != "cancelled" and (status != told or error == "ProcessDied")
            if status is not None and is_wrong and not self._is_explained(end):
                self._find("run differs", thread, f"run {run} was told {told}, is {status} {error or ''}")

    def _is_explained(self, end: Line) -> bool:
        """Whether the process was killed soon after a fault kept it from writing down how its run ended."""
        death = min(
            (line["at"] for line in self._by["fault"] if _hits(line, end["by"]) and line["at"] > end["at"]),
            default=None,
        )
        if death is None or death - end["at"] > _UNKNOWN_END:
            return False
        return any(end["at"] - 2 < line["at"] < death and line["kind"] in _OF_LINES for line in self._by["fault"])

    # Tools

    def _effects(self) -> None:
        """Effects outside of the database took place as often as the tool's policy promises."""
        counts: Counter[Key] = Counter()
        tokens: dict[Key, set[str]] = defaultdict(set)
        for file in (self._directory / "outside").iterdir():
            for line in map(json.loads, file.read_text().splitlines()):
                action = line["thread"], line["tool"], line["key"]
                counts[action] += 1
                tokens[action].add(line["token"])
        # From the beginning of its run on, an action may be in the ledger, and be deleted with its thread.
        began: dict[Key, float] = {}
        runs: dict[tuple[str, str], float] = {}
        for line in self.lines:
            if line["what"] == "run":
                runs[line["by"], line["thread"]] = line["at"]
            elif line["what"] == "enter":
                at = runs.get((line["by"], line["thread"]), line["at"])
                began.setdefault((line["thread"], line["tool"], line["key"]), at)
        self.compared["effects"] = counts.total()
        for action, count in counts.items():
            thread, tool, key = action
            if self._is_deleted_after(thread, began[action]):
                continue
            if PROMISES[tool] in ("most", "exactly") and count > 1:
                self._find("effect repeated", thread, f"{tool} {key} took effect {count} times")
            if PROMISES[tool] == "token" and len(tokens[action]) > 1:
                self._find("token changed", thread, f"{tool} {key} had {len(tokens[action])} tokens")
        # If a thread is forked during an action, the attempts on the fork have the token of those before, so that their
        # effect may be one of the thread that was forked.
        happened = {token for found in tokens.values() for token in found}
        query = (
            "SELECT thread_id, tool, idempotency_key, coalesce(origin_thread_id, thread_id) FROM {}.tool_executions "
            "WHERE status = 'success' AND NOT is_copy"
        )
        for *action, origin in self._rows(query):
            thread, tool, key = action
            if tool == "book" or counts[thread, tool, key]:
                continue
            if PROMISES[tool] != "token" or action_token(origin, tool, key) not in happened:
                self._find("effect missing", thread, f"{tool} {key} is a success that never took place")
        for line in self._by["asked again"]:
            for id, (tool, _) in zip(line["ids"], line["calls"], strict=False):
                effects = [key for key in counts if key[2] == id]
                if effects and tool == "plain":
                    self._find("model asked again", effects[0][0], f"{tool} {id} took effect and was told as an error")

    def _bookings(self) -> None:
        """What a transactional tool wrote is there exactly if its outcome is."""
        query = """
            SELECT coalesce(b.thread_id, t.thread_id), coalesce(b.key, t.idempotency_key), t.status, b.count
            FROM (SELECT thread_id, key, count(*) FROM public.bookings WHERE thread_id LIKE %s GROUP BY 1, 2) AS b
                FULL JOIN (SELECT * FROM {}.tool_executions WHERE tool = 'book' AND NOT is_copy) AS t
                ON t.thread_id = b.thread_id AND t.idempotency_key = b.key
        """
        for thread, key, status, count in self._rows(query, f"{self._seed}-%"):
            if (count or 0) != (status == "success") and not self._is_deleted_after(thread, 0):
                self._find("booking differs", thread, f"{key} is {status} and was booked {count or 0} times")

    def _unknowns(self) -> None:
        """Nobody was told that an outcome is unknown without a fault that can have made it so."""
        for line in self._by["end"] + self._by["failed"]:
            if line.get("error") == "ToolFailedError" and "FlakyError" not in line["text"]:
                self._find("tool failed", line["thread"], line["text"])
            if line.get("error") != "ToolOutcomeUnknownError":
                continue
            action = line["thread"], line["tool"], line["idempotency_key"]
            entries = [
                e for e in self._by["enter"] if (e["thread"], e["tool"], e["key"]) == action and e["at"] < line["at"]
            ]
            # One that was never entered may have come with a fork or a copy.
            start = min((entry["at"] - 2 for entry in entries), default=0.0)
            hit = {entry["by"] for entry in entries}
            for fault in self._by["fault"] + self._by["aimed"]:
                if start < fault["at"] < line["at"] and (
                    fault["kind"] in _OF_LINES or not hit or any(_hits(fault, name) for name in hit)
                ):
                    break
            else:
                self._find("unknown without fault", line["thread"], line["text"])

    # The tables as a whole

    def _integrity(self) -> None:
        """`pgstate check --deep` finds nothing."""
        report = Admin(Database(self._connection, schema=self._schema), **self._options).check(deep=True)
        for problem in report.problems:
            self._find("check", problem.thread_id, f"{problem.where}: {problem.why}")

    def _maintained(self) -> None:
        """A month later, maintenance has left nothing that belongs to nothing."""
        for table, column in (("tombstones", "expires_at"), ("writes", "created_at"), ("leases", "expires_at")):
            query = f"UPDATE {self._schema}.{table} SET {column} = {column} - interval '30 days'"
            self._connection.execute(query.encode())
        # Of a process that was killed only now, nobody knows yet.
        query = f"UPDATE {self._schema}.runs SET alive_until = now() WHERE alive_until < now() + interval '1 hour'"
        self._connection.execute(query.encode())
        self._state.maintain()
        checks = {
            "orphan writes": """SELECT w.thread_id, count(*) FROM {}.writes w LEFT JOIN {}.checkpoints c
                USING (thread_id, checkpoint_ns, checkpoint_id) WHERE c.thread_id IS NULL GROUP BY 1""",
            "orphan segments": """SELECT s.thread_id, count(*) FROM {}.segments s WHERE NOT EXISTS (SELECT FROM
                {}.checkpoints c WHERE c.thread_id = s.thread_id AND s.segment_id = ANY(c.segment_ids)) GROUP BY 1""",
            "orphan labels": """SELECT l.thread_id, count(*) FROM {}.labels l LEFT JOIN {}.checkpoints c
                USING (thread_id, checkpoint_ns, checkpoint_id) WHERE c.thread_id IS NULL GROUP BY 1""",
            "journal not moved": "SELECT thread_id, count(*) FROM {}.journal GROUP BY 1",
            "old tombstones": "SELECT thread_id, count(*) FROM {}.tombstones GROUP BY 1",
        }
        for kind, query in checks.items():
            for thread, count in self._rows(query):
                self._find(kind, thread, f"{count} rows")
        for thread, status in self._rows("SELECT thread_id, status FROM {}.threads WHERE status = 'busy'"):
            self._find("thread busy", thread, f"it is {status} although all processes have ended")
        last = {line["thread"]: line["at"] for line in self.lines if line["what"] in ("run", "end", "failed", "ack")}
        for one in self._operations:
            again = (x for x in self._operations if x.end > one.start and x.op in ("revive", "fork", "copy", "delete"))
            is_last = not any(x is not one and one.thread in (x.thread, *x.line["args"]) for x in again)
            if one.op == "delete" and one.is_done and is_last:
                is_quiet = one.start > last.get(one.thread, 0)
                # A tombstone refuses what runs still write; a prune of whole threads leaves none.
                is_refused = self._profile(one.thread).guard is not None and "strategy" not in one.line
                for table in _OF_THREADS if is_quiet else _OF_STATES if is_refused else ():
                    rows = self._rows(f"SELECT count(*) FROM {{}}.{table} WHERE thread_id = %s", one.thread)
                    if rows[0][0]:
                        self._find("deletion incomplete", one.thread, f"{rows[0][0]} rows in {table}")


def check_leases(connection: psycopg.Connection, schema: str) -> Iterable[Finding]:
    """Leases that are held although every run has ended some seconds ago."""
    query = f"SELECT thread_id, holder_id, expires_at FROM {schema}.leases WHERE holder_id <> '' AND expires_at > now()"
    for thread, holder, expires_at in connection.execute(query.encode()):
        yield Finding("lease kept", thread, f"by {holder} until {expires_at}")


def _key(line: Line) -> Key:
    return line["thread"], line["ns"], line["id"]


def _family(thread: str) -> str:
    return thread.partition("~")[0]


def _hits(fault: Line, name: str) -> bool:
    """Whether a fault struck that process: what others did to it, or it to itself."""
    return name in (fault.get("target"), fault["by"])


def _ns(one: CheckpointTuple) -> str:
    return str(one.config["configurable"].get("checkpoint_ns", ""))


def _id(one: CheckpointTuple) -> str:
    return str(one.config["configurable"]["checkpoint_id"])


def _parent(one: CheckpointTuple) -> str | None:
    return one.parent_config["configurable"]["checkpoint_id"] if one.parent_config else None
