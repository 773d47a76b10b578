"""A queue without a worker: its operations, called by hand as a worker calls them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.runs import cancelling, claiming, ending, enqueue, tending
from langgraph_pgstate.runs.ending import RunError
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.queue import list_dead_letters
from langgraph_pgstate.runs.requests import RunRequest, request_run
from langgraph_pgstate.runs.types import ClaimedRun, Claims, EnqueuedRun, EventBatch, Recovered, RunKey, Tended
from langgraph_pgstate.schema.queries import queries
from support import config_of, put_arguments

CODEC = ValueCodec()
STATES = [PGState, AsyncPGState]
TTL = 60.0
_numbers = itertools.count()


class Queue:
    """The operations of a queue on one connection.

    Args:
        connection: In autocommit.
        schema: The schema, set up.
        worker_id: Id of the worker that claims.
    """

    def __init__(self, connection: psycopg.Connection, schema: str, worker_id: str = "worker") -> None:
        self.connection, self.schema, self.worker_id = connection, schema, worker_id
        self.database = Database(connection, schema=schema)
        self.queries = queries(schema)

    def do(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        """Run an operation. Repeat it if another transaction has locked its thread."""
        while True:
            try:
                return self.database.run(operation, self.queries, *arguments, **options)
            except DatabaseError as error:
                if not is_locked(error):
                    raise

    def enqueue(self, *requests: RunRequest) -> list[EnqueuedRun]:
        found: list[EnqueuedRun] = self.do(enqueue.enqueue, requests)
        return found

    def add(self, thread_id: str | None = None, **options: Any) -> str:
        """Enqueue a run, and return its id."""
        return self.enqueue(request(thread_id, **options))[0].run_id

    def claim(
        self,
        limit: int = 10,
        queue: str = "default",
        graphs: Sequence[str] = ("graph",),
        ttl: float = TTL,
        versions: Mapping[str, Sequence[str]] | None = None,
        suspects: bool | None = None,
    ) -> list[ClaimedRun]:
        arguments = (self.worker_id, queue, graphs, limit, ttl, versions)
        found: Claims = self.do(claiming.claim, *arguments, suspects=suspects)
        return found.runs

    def claim_one(self, **options: Any) -> ClaimedRun:
        (found,) = self.claim(1, **options)
        return found

    def finish(self, run: ClaimedRun | RunKey, status: str = "success", **options: Any) -> bool:
        return bool(self.do(ending.finish, key_of(run), status, **options))

    def finish_together(self, *runs: ClaimedRun, events: Sequence[EventBatch] = ()) -> bool:
        return bool(self.do(ending.finish_together, [run.key for run in runs], "success", events))

    def fail(self, run: ClaimedRun, retry_after: float | None = None) -> bool:
        return self.finish(run, "error", error=RunError("ValueError", "no"), retry_after=retry_after)

    def give_back(self, run: ClaimedRun) -> bool:
        return bool(self.do(ending.give_back, run.key))

    def roll_back(self, run: ClaimedRun) -> bool:
        return bool(self.do(ending.roll_back, run.key))

    def tend(self, *runs: ClaimedRun, ttl: float = TTL) -> Tended:
        found: Tended = self.do(tending.tend, self.worker_id, [run.key for run in runs], ttl)
        return found

    def recover(self, **options: Any) -> list[Recovered]:
        found: list[Recovered] = self.do(tending.recover, **options)
        return found

    def make_due(self) -> int:
        return int(self.do(tending.make_due))

    def cancel(self, thread_id: str, run_id: str, action: str = "cancel") -> str:
        return str(self.do(cancelling.cancel, thread_id, run_id, action))

    def retry(self, thread_id: str, run_id: str) -> bool:
        return bool(self.do(cancelling.retry, thread_id, run_id))

    def dead_letters(self) -> list[str]:
        page = self.do(read, list_dead_letters())
        return [run.run_id for run in page.items]

    def expire(self, *runs: ClaimedRun) -> None:
        """Let the leases of some runs expire, as those of a killed or frozen worker do."""
        for run in runs:
            self.execute("UPDATE {}.leases SET expires_at = now() WHERE thread_id = %s", run.thread_id)

    def wake(self) -> None:
        """Make all runs due that were enqueued for later."""
        self.execute("UPDATE {}.queue SET run_after = now() WHERE run_after IS NOT NULL")

    def put(self, thread_id: str, run_id: str) -> str:
        """Put a checkpoint of a run, and return its id."""
        config = config_of(thread_id)
        config["configurable"]["run_id"] = run_id
        arguments = put_arguments(config, 0, value=next(_numbers))
        arguments[2]["run_id"] = run_id
        saved = PGStateSaver(self.connection, schema=self.schema).put(*arguments)
        return str(saved["configurable"]["checkpoint_id"])

    def execute(self, text: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run a statement in which `{}` stands for the schema."""
        cursor = self.connection.execute(sql.SQL(text).format(sql.Identifier(self.schema)), arguments)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    def explain(self, name: str, parameters: dict[str, object]) -> int:
        """Return the number of pages that a statement reads, and roll it back."""
        query = self.queries.all[name]
        with self.connection.transaction(force_rollback=True):
            cursor = psycopg.RawCursor(self.connection)
            cursor.execute(
                b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + query.text,
                [parameters[name] for name in query.parameters],
            )
            ((plan,),) = cursor.fetchall()
        found = plan[0]["Plan"]
        return int(found["Shared Hit Blocks"] + found["Shared Read Blocks"])

    def rows(self) -> list[tuple[Any, ...]]:
        """Thread, run, status and readiness of all that is in the queue, in the order of their threads."""
        return self.execute(
            "SELECT thread_id, run_id, status, is_ready FROM {}.queue ORDER BY thread_id, number, run_id"
        )

    def run(self, run_id: str) -> tuple[str, int, str | None]:
        """Status, attempt and error of a run in the record."""
        ((status, attempt, error),) = self.execute(
            "SELECT status, attempt, error_type FROM {}.runs WHERE run_id = %s", run_id
        )
        return status, attempt, error

    def thread(self, thread_id: str) -> str:
        """Return the status of a thread."""
        ((status,),) = self.execute("SELECT status FROM {}.threads WHERE thread_id = %s", thread_id)
        return str(status)

    def requests(self) -> set[str]:
        """Return the runs with a stored request."""
        return {run_id for (run_id,) in self.execute("SELECT run_id FROM {}.run_requests")}

    def check(self) -> None:
        """Assert the invariants of the queue."""
        stranded = self.execute(
            "SELECT thread_id FROM {0}.queue GROUP BY thread_id HAVING count(*) FILTER (WHERE is_ready) = 0"
            " AND bool_or(run_after IS NULL AND number = ("
            "  SELECT min(o.number) FROM {0}.queue o WHERE o.thread_id = queue.thread_id))"
        )
        assert stranded == [], "threads of which no run is ready though one is due"
        crowded = self.execute("SELECT thread_id FROM {}.queue WHERE is_ready GROUP BY thread_id HAVING count(*) > 1")
        assert crowded == []
        assert self.execute("SELECT 1 FROM {}.queue WHERE is_ready AND (number IS NULL OR run_after IS NOT NULL)") == []
        different = self.execute(
            "SELECT q.run_id, q.status, r.status FROM {0}.queue q LEFT JOIN {0}.runs r"
            " ON r.thread_id = q.thread_id AND r.run_id = q.run_id WHERE r.status IS DISTINCT FROM q.status"
        )
        assert different == [], "the record says otherwise than the queue"
        lost = self.execute(
            "SELECT r.run_id, r.status FROM {0}.runs r WHERE r.status IN ('pending', 'running')"
            " AND NOT EXISTS (SELECT 1 FROM {0}.queue q WHERE q.thread_id = r.thread_id AND q.run_id = r.run_id)"
        )
        assert lost == [], "runs that have not ended and are not in the queue"
        without = self.execute(
            "SELECT q.run_id FROM {0}.queue q WHERE NOT EXISTS (SELECT 1 FROM {0}.run_requests d"
            " WHERE d.thread_id = q.thread_id AND d.run_id = q.run_id)"
        )
        assert without == [], "runs of which nobody knows what they are to do"
        idle = self.execute(
            "SELECT t.thread_id FROM {0}.threads t WHERE (t.status = 'busy')"
            " <> EXISTS (SELECT 1 FROM {0}.queue q WHERE q.thread_id = t.thread_id)"
        )
        assert idle == [], "threads that are busy without a run, or the other way round"


def request(thread_id: str | None = None, *, graph: str = "graph", input: Any = None, **options: Any) -> RunRequest:
    """Return a run to enqueue."""
    return request_run(CODEC, graph, {"x": 1} if input is None else input, thread_id=thread_id, **options)


def key_of(run: ClaimedRun | RunKey) -> RunKey:
    """Return a run under its lease."""
    return run.key if isinstance(run, ClaimedRun) else run


@asynccontextmanager
async def open_state(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    """Provide a state of either API, on a server."""
    if api is PGState:
        with PGState.open(dsn, schema=schema, **options) as state:
            yield state
    else:
        async with AsyncPGState.open(dsn, schema=schema, **options) as state:
            yield state


async def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of either API."""
    if asyncio.iscoroutinefunction(function):
        return await function(*arguments, **options)
    return await asyncio.to_thread(function, *arguments, **options)
