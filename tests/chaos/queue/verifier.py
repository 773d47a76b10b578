"""The verifier of a storm over the queue: compares what became of every run with what the processes noted."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from langgraph_pgstate import PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import PGStateError

from ..findings import Finding
from ..journal import Line, read
from .processes import MAX_CRASHES

ENDS = ("success", "error", "interrupted", "cancelled", "timeout")
# Seconds for which a fault may go on to have effects, as on processes that were stopped.
_LINGERS = 8.0
_DISK_FULL = "53100"
_NO_SPACE = "No space left on device"
# Errors that a caller may be told in a storm.
_OF_CALLERS = {
    "AlreadyAnsweredError",
    "NotFoundError",
    "OperationalError",
    "AdminShutdown",
    "CrashShutdown",
    "ThreadBusyError",
    "UnavailableError",
}


class Verifier:
    """Compares one schema with the journals of the processes that worked on it.

    Args:
        connection: In autocommit.
        schema: The tables.
        directory: Where the journals are.
        tenant: The tenant whose rows they are, where tenants are kept apart.

    Attributes:
        lines: All lines of the journals.
        compared: How much was compared, by kind.
    """

    def __init__(self, connection: psycopg.Connection, schema: str, directory: Path, tenant: str | None) -> None:
        self._connection, self._schema, self._directory, self._tenant = connection, schema, directory, tenant
        self.lines = read(directory)
        self._by: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            self._by[line["what"]].append(line)
        self._storm = next((line["at"] for line in self._by["storm"]), float("inf"))
        self._findings: list[Finding] = []
        self.compared: Counter[str] = Counter()
        query = "SELECT run_id, thread_id, status, error_type FROM {}.runs WHERE queue IS NOT NULL"
        self._runs = {run: (thread, status, error) for run, thread, status, error in self._rows(query)}
        self._claims: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in self._by["claim"]:
            self._claims[line["by"], line["run"]].append(line)
        # An id that was used again after a rollback names another run.
        reused = {line["run"] for line in self._by["repeated"] if line["new"]}
        answered = Counter(line["run"] for line in self._by["repeated"])
        asked = Counter(line["run"] for line in self._by["again"])
        self._reused = reused | {run for run, count in asked.items() if count > answered[run]}
        self._tasks = {
            line["run"]: line["task"]
            for line in self._by["enqueue"]
            if line["task"] and line["run"] not in self._reused
        }

    def verify(self) -> list[Finding]:
        """Run all checks."""
        for check in (
            self._ended,
            self._known,
            self._told,
            self._cancelled,
            self._errors,
            self._fenced,
            self._repeated,
            self._states,
            self._effects,
            self._orders,
            self._tables,
        ):
            check()
        return self._findings

    def excerpt(self, finding: Finding, count: int = 40) -> Iterator[str]:
        """The last lines on a finding's thread, and on faults."""
        chosen = [line for line in self.lines if line.get("thread") == finding.thread or line["what"] == "fault"]
        words = {word.strip("'\",:") for word in finding.text.split()}
        named = [n for n, line in enumerate(chosen) if any(isinstance(v, str) and v in words for v in line.values())]
        last = min(len(chosen), (named[-1] if named else len(chosen)) + count // 2)
        for line in chosen[max(0, last - count) : last]:
            yield json.dumps(line)[:300]

    def _find(self, kind: str, thread: str, text: str) -> None:
        self._findings.append(Finding(kind, thread, text))

    def _rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(query.replace("{}", self._schema).encode(), arguments or None).fetchall()

    def _token(self, line: Line) -> int:
        """The fencing token under which a process noted something of a run."""
        claims = self._claims[line["by"], line["run"]]
        if "attempt" in line:
            claims = [claim for claim in claims if claim["attempt"] == line["attempt"]] or claims
        place = bisect_right([claim["at"] for claim in claims], line["at"])
        return int(claims[max(0, place - 1)]["token"]) if claims else 0

    def _is_rolled_back(self, run: str, thread: str, since: float) -> bool:
        """Whether somebody has asked to roll a run back."""
        told_at = {line["run"]: line["at"] for line in self._by["enqueued"]}
        if any(line["run"] == run and line["action"] == "rollback" for line in self._by["cancel"]):
            return True
        # An id that is repeated after its run was rolled back enqueues a run that rolls others back.
        told = [(line, told_at.get(line["run"], float("inf"))) for line in self._by["enqueue"]]
        told = [(line, at) for line, at in told if line["strategy"] == "rollback"]
        told += [(line, line["at"]) for line in self._by["repeated"] if line["new"]]
        return any(line["thread"] == thread and at > since and line["run"] != run for line, at in told)

    def _is_full(self, at: float) -> bool:
        """Whether the disk was full a moment before."""
        return any(line["kind"] == "disk" and line["at"] < at < line["at"] + _LINGERS for line in self._by["fault"])

    def _ended(self) -> None:
        """Every run has ended, and none is left in the queue."""
        for run, (thread, status, _) in self._runs.items():
            self.compared["runs"] += 1
            if status not in ENDS:
                self._find("run not ended", thread, f"run {run} is {status}")
        for thread, run, status in self._rows("SELECT thread_id, run_id, status FROM {}.queue"):
            self._find("run in the queue", thread, f"run {run} is {status}")

    def _known(self) -> None:
        """Every run that a caller was told is enqueued is there, unless it was rolled back; none that was refused."""
        asked = {line["run"]: line["at"] for line in self._by["enqueue"]}
        for line in self._by["enqueued"]:
            run, thread = line["run"], line["thread"]
            if run not in self._runs and not self._is_rolled_back(run, thread, asked[run]):
                self._find("run lost", thread, f"run {run} was enqueued")
        for thread, run, status in self._rows("SELECT thread_id, run_id, status FROM {}.runs WHERE queue IS NULL"):
            if run in asked:
                self._find("run is back", thread, f"run {run} was deleted, and is recorded as {status}")
        for kind in ("refused", "withdrawn"):
            for line in self._by[kind]:
                if line["run"] in self._runs and line["run"] not in self._reused:
                    self._find("run made", self._runs[line["run"]][0], f"run {line['run']} was {kind}")

    def _is_retried(self, run: str, since: float) -> bool:
        """Whether a run may have been retried after a time: asked for or answered since, or never answered."""
        asked, answered = ([line for line in self._by[what] if line["run"] == run] for what in ("retry", "retried"))
        is_since = any(line["at"] > since for line in (*asked, *answered))
        return run in self._reused or is_since or len(asked) > len(answered)

    def _told(self) -> None:
        """How a caller was told that a run has ended is how it has ended."""
        for line in self._by["told"]:
            run, thread, told, status = line["run"], line["thread"], line["told"], line.get("status")
            if self._is_retried(run, line["asked_at"]):
                continue
            _, final, _ = self._runs.get(run, (thread, None, None))
            expected = {
                "end": ("success", "interrupted"),
                "interrupted": ("interrupted",),
                "RunFailedError": (status,),
                "RunCancelledError": ("cancelled", None),
                "status": (status,) if status in ENDS else (*ENDS, None),
            }.get(told, (*ENDS, None))
            self.compared["answers about ends"] += 1
            if final not in expected:
                self._find("told otherwise", thread, f"run {run} was told as {told} {status or ''}, and is {final}")

    def _cancelled(self) -> None:
        """What a caller was told of a cancelled run holds, and what was to be rolled back is gone."""
        for line in self._by["cancelled"]:
            run, thread, status = line["run"], line["thread"], line["status"]
            if self._is_retried(run, 0.0):
                continue
            self.compared["cancelled runs"] += 1
            final = self._runs.get(run, (thread, None, None))[1]
            if line["action"] == "rollback" and status in ("running", "cancelled"):
                # It may have been cancelled otherwise before.
                is_kept = status == "cancelled" and any(
                    other["run"] == run and other["action"] == "cancel" for other in self._by["cancel"]
                )
                if final is not None and not is_kept:
                    self._find("rollback forgotten", thread, f"run {run} is {final}")
            elif status in ENDS and final != status and (status, final) != ("cancelled", None):
                self._find("told otherwise", thread, f"run {run} was cancelled as {status}, and is {final}")

    def _errors(self) -> None:
        """Runs end with errors for a reason, and callers are told no others than those that a storm explains."""
        for run, (thread, status, error) in self._runs.items():
            task = self._tasks.get(run)
            if status != "error" or task is None:
                continue
            claims = [line["at"] for line in self._by["claim"] if line["run"] == run]
            if error == "WorkerDied" and len(claims) >= MAX_CRASHES:
                continue
            [[message, frames]] = self._rows(
                f"SELECT error_message, error_traceback FROM {{}}.runs WHERE run_id = '{run}'"
            )
            # What a full disk refuses is the run's error, which says so.
            was_full = _NO_SPACE in str(message) and any(line["kind"] == "disk" for line in self._by["fault"])
            if not was_full and not (task["do"] == "fail" and str(error).endswith("PlannedError")):
                self._find("run failed", thread, f"run {run} of task {task['do']}: {error}: {message} {frames}")
        for line in self._by["failed"]:
            if line.get("sqlstate") == _DISK_FULL and self._is_full(line["at"]):
                continue
            if line["error"] not in _OF_CALLERS or (line["at"] < self._storm and line["error"] == "UnavailableError"):
                self._find(f"error {line['error']}", line["thread"], f"{line['job']}: {line['text']} {line['frames']}")

    def _fenced(self) -> None:
        """Nothing was stored under a lease after something was stored under a later one of its thread."""
        tries = {(line["thread"], line["ns"], line["id"]): line for line in self._by["try"]}
        newest: dict[str, tuple[int, float]] = {}
        for ack in self._by["ack"]:
            tried = tries[ack["thread"], ack["ns"], ack["id"]]
            if tried["run"] is None:
                continue
            token = self._token(tried)
            self.compared["acknowledged checkpoints"] += 1
            known, at = newest.get(ack["thread"], (0, 0.0))
            if token < known and tried["at"] > at:
                self._find("fence passed", ack["thread"], f"checkpoint {ack['id']} of run {tried['run']}")
            if token > known:
                newest[ack["thread"]] = token, ack["at"]

    def _repeated(self) -> None:
        """No superstep began again once its checkpoint was acknowledged."""
        tries = {(line["thread"], line["ns"], line["id"]): line for line in self._by["try"]}
        acks: dict[tuple[str, int], tuple[float, int]] = {}
        for ack in self._by["ack"]:
            tried = tries[ack["thread"], ack["ns"], ack["id"]]
            if tried["run"] is not None and not tried["ns"]:
                acks.setdefault((tried["run"], tried["step"]), (ack["at"], self._token(tried)))
        for line in self._by["step"]:
            self.compared["supersteps"] += 1
            at, token = acks.get((line["run"], line["step"]), (float("inf"), 0))
            # One that lost its lease may not know it yet; it stores nothing.
            if line["run"] not in self._reused and line["at"] > at and self._token(line) >= token:
                self._find("superstep repeated", line["thread"], f"step {line['step']} of run {line['run']}")

    def _states(self) -> None:
        """Each thread's state has the supersteps of its runs once, in order, and all of those that succeeded."""
        state = PGState(self._connection, schema=self._schema, tenant=self._tenant)
        by_task = {task["id"]: (run, task) for run, task in self._tasks.items()}
        complete = set()
        for (thread,) in self._rows("SELECT DISTINCT thread_id FROM {}.checkpoints"):
            try:
                found = state.saver.get_tuple({"configurable": {"thread_id": thread}})
            except PGStateError as error:
                self._find("unreadable", thread, str(error))
                continue
            log = [] if found is None else found.checkpoint["channel_values"].get("log", [])
            self.compared["threads"] += 1
            seen: set[str] = set()
            last, count = None, 0
            for entry in log:
                name, _, n = entry.rpartition("/")
                if name != last:
                    if name in seen:
                        self._find("runs mixed", thread, f"task {name} comes twice")
                    last, count = name, 0
                    seen.add(name)
                if int(n) != count:
                    self._find("supersteps differ", thread, f"{entry} follows {count} of task {name}")
                count = int(n) + 1
                if name in by_task and count == by_task[name][1]["steps"]:
                    complete.add(name)
            for name in seen & by_task.keys():
                run = by_task[name][0]
                if run not in self._runs:
                    self._find("rollback incomplete", thread, f"task {name} of run {run} is in the state")
        for name, (run, _) in by_task.items():
            thread, status, _ = self._runs.get(run, ("", None, None))
            if status == "success" and name not in complete:
                self._find("supersteps lost", thread, f"run {run} succeeded, but task {name} is not complete")

    def _effects(self) -> None:
        """Tools took effect once."""
        counts: Counter[tuple[str, str, str]] = Counter()
        tokens: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        outside = self._directory / "outside"
        for file in outside.iterdir() if outside.exists() else ():
            for line in map(json.loads, file.read_text().splitlines()):
                action = line["thread"], line["tool"], line["key"]
                counts[action] += 1
                tokens[action].add(line["token"])
        self.compared["effects"] = counts.total()
        for (thread, tool, key), count in counts.items():
            if count > 1 or len(tokens[thread, tool, key]) > 1:
                self._find("effect repeated", thread, f"{tool} {key} took effect {count} times")
        keys = {(thread, tool, key.rpartition(":")[2]) for thread, tool, key in counts}
        for run, task in self._tasks.items():
            thread, status, _ = self._runs.get(run, ("", None, None))
            for n in range(task["steps"]) if status == "success" and task["do"] in ("charge", "post") else ():
                if (thread, task["do"], f"{task['order']}.{n}") not in keys:
                    self._find("effect missing", thread, f"{task['do']} of task {task['id']} in superstep {n}")

    def _orders(self) -> None:
        """A row of the caller's is there exactly if the run is that was enqueued with it."""
        orders = {row[0] for row in self._connection.execute("SELECT run_id FROM public.orders").fetchall()}
        for line in self._by["enqueue"]:
            run, thread = line["run"], line["thread"]
            if not line.get("pays") or run in self._reused:
                continue
            self.compared["orders"] += 1
            if run in orders and run not in self._runs and not self._is_rolled_back(run, thread, line["at"]):
                self._find("run lost", thread, f"run {run} was enqueued with an order")
            if run in self._runs and run not in orders:
                self._find("order lost", thread, f"run {run} was enqueued without its order")

    def _tables(self) -> None:
        """`pgstate check --deep` finds nothing; no thread is busy, and no request is left of a run that succeeded."""
        for problem in (
            Admin(Database(self._connection, schema=self._schema), tenant=self._tenant).check(deep=True).problems
        ):
            self._find("check", problem.thread_id, f"{problem.where}: {problem.why}")
        for (thread,) in self._rows("SELECT thread_id FROM {}.threads WHERE status = 'busy'"):
            self._find("thread busy", thread, "although all runs have ended")
        query = """
            SELECT d.thread_id, d.run_id FROM {}.run_requests d LEFT JOIN {}.runs r USING (thread_id, run_id)
            WHERE r.status IS NULL OR r.status = 'success'
        """
        for thread, run in self._rows(query):
            self._find("request kept", thread, f"of run {run}")
