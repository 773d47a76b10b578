"""The job queues under comparison, each set up as its own documentation recommends for speed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Protocol, TypedDict
from uuid import uuid4

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from benchmarks.contestants import UPSTREAM_OPTIONS
from benchmarks.measure import OURS
from langgraph_pgstate import AsyncPGState, AsyncWorker, PGState

PROCRASTINATE = "procrastinate"
PGQUEUER = "pgqueuer"
DBOS = "dbos"
OTHERS = (PROCRASTINATE, PGQUEUER, DBOS)
LABELS = {
    OURS: "langgraph-pgstate",
    PROCRASTINATE: "procrastinate",
    PGQUEUER: "pgqueuer",
    DBOS: "DBOS",
}
QUEUE = "bench"
JOB = "noop"
_POOL = 20
# Seconds between two polls of DBOS with many jobs; its default is kept where it is idle.
_BUSY_POLLING = 0.02

Enqueue = Callable[[int], None]


class Contestant(Protocol):
    """A job queue in a database of its own.

    Attributes:
        settings: The settings that differ from its defaults.
        unfinished: A query: whether a job is not stored as finished.
        finished: A query: the number of jobs that are stored as finished.
    """

    settings: ClassVar[str]
    unfinished: ClassVar[str]
    finished: ClassVar[str]

    def __init__(self, dsn: str) -> None:
        """Take the database's URL."""

    def install(self) -> None:
        """Make its tables."""

    def client(self) -> Any:
        """A block with a function that enqueues a number of jobs at once."""

    def work(self, concurrency: int | None, begin: Callable[[], None], *, graph: bool = False) -> None:
        """Run a worker until the process is killed, with its defaults unless a concurrency is given.

        Each job only calls `begin`, or runs a graph whose only node does.
        """


class _State(TypedDict):
    number: int


class Runs:
    """Our queue and worker: a job is enqueued, claimed with the lease of its thread, and ended.

    With a graph it is a run with its checkpoints and its record.
    """

    settings = "AsyncWorker, uvloop; enqueue_batch"
    unfinished = "SELECT EXISTS (SELECT FROM pgstate.queue)"
    finished = "SELECT count(*) FROM pgstate.runs WHERE status = 'success'"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def install(self) -> None:
        """See `Contestant`."""
        with PGState.open(self._dsn) as state:
            state.setup()

    @contextmanager
    def client(self) -> Iterator[Enqueue]:
        """See `Contestant`."""
        with PGState.open(self._dsn) as state:
            state.setup()

            def enqueue(jobs: int) -> None:
                if jobs == 1:
                    state.runs.enqueue(JOB, {"number": 0}, queue=QUEUE)
                else:
                    state.runs.enqueue_batch([{"graph": JOB, "input": {"number": 0}, "queue": QUEUE}] * jobs)

            yield enqueue

    def work(self, concurrency: int | None, begin: Callable[[], None], *, graph: bool = False) -> None:
        """See `Contestant`."""
        import uvloop

        uvloop.run(self._work(concurrency, begin, graph))

    async def _work(self, concurrency: int | None, begin: Callable[[], None], graph: bool) -> None:
        async with AsyncPGState.open(self._dsn) as state:
            options: Any = {} if concurrency is None else {"concurrency": concurrency}
            worker = AsyncWorker(state, {JOB: graph_of(begin)}, queues=[QUEUE], **options)
            if not graph:
                worker._executor = _NoGraph(begin)  # type: ignore[assignment]
            await worker.run_forever()


class _NoGraph:
    """An executor whose runs succeed at once."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    async def aexecute(self, execution: Any) -> Any:
        """See `GraphExecutor`."""
        from langgraph_pgstate.worker.executing import RunOutcome

        self._begin()
        return RunOutcome("finish", "success")


def graph_of(begin: Callable[[], None], saver: Any = None, *, is_async: bool = True) -> Any:
    """A graph whose only node calls `begin`, with a saver of its own or none."""
    from langgraph.graph import END, START, StateGraph

    async def node(state: _State) -> _State:
        begin()
        return state

    def blocking_node(state: _State) -> _State:
        begin()
        return state

    graph = StateGraph(_State)
    graph.add_node("node", node if is_async else blocking_node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def _body(dsn: str, begin: Callable[[], None], graph: bool) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """What a job of another queue awaits: `begin`, or a graph on a new thread with LangGraph's own saver."""

    async def only_begin() -> None:
        begin()

    if not graph:
        yield only_begin
        return
    async with AsyncConnectionPool(dsn, kwargs=UPSTREAM_OPTIONS, max_size=_POOL, open=False) as pool:
        await pool.wait()
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        compiled = graph_of(begin, saver)

        async def invoke() -> None:
            await compiled.ainvoke({"number": 0}, {"configurable": {"thread_id": str(uuid4())}})

        yield invoke


class Procrastinate:
    """procrastinate with psycopg."""

    settings = f"uvloop, a pool of {_POOL} connections; batch_defer"
    unfinished = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    finished = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def install(self) -> None:
        """See `Contestant`."""
        from procrastinate import App, SyncPsycopgConnector

        with App(connector=SyncPsycopgConnector(conninfo=self._dsn)).open() as app:
            app.schema_manager.apply_schema()

    @contextmanager
    def client(self) -> Iterator[Enqueue]:
        """See `Contestant`."""
        from procrastinate import App, SyncPsycopgConnector

        with App(connector=SyncPsycopgConnector(conninfo=self._dsn)).open() as app:
            job = app.configure_task(JOB, queue=QUEUE)

            def enqueue(jobs: int) -> None:
                if jobs == 1:
                    job.defer()
                else:
                    job.batch_defer(*[{} for _ in range(jobs)])

            yield enqueue

    def work(self, concurrency: int | None, begin: Callable[[], None], *, graph: bool = False) -> None:
        """See `Contestant`."""
        import uvloop
        from procrastinate import App, PsycopgConnector

        app = App(connector=PsycopgConnector(conninfo=self._dsn, min_size=_POOL, max_size=_POOL))

        async def main() -> None:
            async with app.open_async(), _body(self._dsn, begin, graph) as body:

                @app.task(name=JOB, queue=QUEUE)
                async def job() -> None:
                    await body()

                options: Any = {} if concurrency is None else {"concurrency": concurrency}
                await app.run_worker_async(queues=[QUEUE], install_signal_handlers=False, **options)

        uvloop.run(main())


class PgQueuer:
    """pgqueuer with asyncpg and uvloop, and the storage parameters that it recommends."""

    settings = (
        f"asyncpg, uvloop, a pool of {_POOL} connections, `pgq autovac`; a batch is half of the concurrency, the most "
        "it allows; one statement enqueues a batch"
    )
    unfinished = "SELECT EXISTS (SELECT FROM pgqueuer)"
    finished = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def install(self) -> None:
        """See `Contestant`."""
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        async def main() -> None:
            connection = await asyncpg.connect(self._dsn)
            queries = Queries(AsyncpgDriver(connection))
            await queries.install()
            await queries.optimize_autovacuum()
            await connection.close()

        asyncio.run(main())

    @contextmanager
    def client(self) -> Iterator[Enqueue]:
        """See `Contestant`."""
        import asyncpg
        import uvloop
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            connection = runner.run(asyncpg.connect(self._dsn))
            queries = Queries(AsyncpgDriver(connection))

            def enqueue(jobs: int) -> None:
                runner.run(queries.enqueue([JOB] * jobs, [None] * jobs, [0] * jobs))

            yield enqueue
            runner.run(connection.close())

    def work(self, concurrency: int | None, begin: Callable[[], None], *, graph: bool = False) -> None:
        """See `Contestant`."""
        import asyncpg
        import uvloop
        from pgqueuer import PgQueuer as Manager
        from pgqueuer.models import Job

        async def main() -> None:
            pool = await asyncpg.create_pool(self._dsn, min_size=_POOL, max_size=_POOL)
            manager = Manager.from_asyncpg_pool(pool)
            options: Any = {}
            if concurrency is not None:
                options = {"batch_size": concurrency // 2, "max_concurrent_tasks": concurrency}
            async with _body(self._dsn, begin, graph) as body:

                @manager.entrypoint(JOB)
                async def run_job(job: Job) -> None:
                    await body()

                await manager.run(**options)

        uvloop.run(main())


class Dbos:
    """DBOS with its queues."""

    settings = f"a pool of {_POOL} connections; one transaction enqueues a batch; it polls every {_BUSY_POLLING:g} s"
    unfinished = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status <> 'SUCCESS')"
    finished = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def install(self) -> None:
        """See `Contestant`."""
        self._launch(None, lambda: None)
        from dbos import DBOS as Library

        Library.destroy(destroy_registry=True)

    @contextmanager
    def client(self) -> Iterator[Enqueue]:
        """See `Contestant`."""
        from dbos import DBOSClient

        client = DBOSClient(system_database_url=self._dsn)
        options: Any = {"queue_name": QUEUE, "workflow_name": JOB}

        def enqueue(jobs: int) -> None:
            if jobs == 1:
                client.enqueue(options)
                return
            with client._sys_db.engine.begin() as connection:
                for _ in range(jobs):
                    client.enqueue_in_transaction(connection, options)

        try:
            yield enqueue
        finally:
            client.destroy()

    def work(self, concurrency: int | None, begin: Callable[[], None], *, graph: bool = False) -> None:
        """See `Contestant`."""
        if not graph:
            self._launch(concurrency, begin)
            threading.Event().wait()
        with ConnectionPool(self._dsn, kwargs=UPSTREAM_OPTIONS, max_size=_POOL, open=True) as pool:
            saver = PostgresSaver(pool)  # type: ignore[arg-type]
            saver.setup()
            compiled = graph_of(begin, saver, is_async=False)
            self._launch(
                concurrency,
                lambda: compiled.invoke({"number": 0}, {"configurable": {"thread_id": str(uuid4())}}),
            )
            threading.Event().wait()

    def _launch(self, concurrency: int | None, body: Callable[[], Any]) -> None:
        from dbos import DBOS as Library

        Library(
            config={
                "name": "bench",
                "system_database_url": self._dsn,
                "sys_db_pool_size": _POOL,
                "log_level": "ERROR",
                "run_admin_server": False,
            }
        )

        @Library.workflow(name=JOB)
        def job() -> None:
            body()

        Library.launch()
        options: Any = {}
        if concurrency is not None:
            # With its default it would claim `concurrency` jobs a second.
            options = {"worker_concurrency": concurrency, "polling_interval_sec": _BUSY_POLLING}
        Library.register_queue(QUEUE, on_conflict="always_update", **options)


CONTESTANTS: dict[str, type[Contestant]] = {
    OURS: Runs,
    PROCRASTINATE: Procrastinate,
    PGQUEUER: PgQueuer,
    DBOS: Dbos,
}


def ask(connection: psycopg.Connection[Any], query: str) -> Any:
    """The only value that a query returns."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
