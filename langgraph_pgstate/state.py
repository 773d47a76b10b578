"""The state: the object that owns the connections and the parts of the package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, nullcontext
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar, Unpack, cast

from langgraph_pgstate.admin import integrity, overview
from langgraph_pgstate.admin.maintenance import maintain, maintain_rows
from langgraph_pgstate.admin.types import DatabaseOverview, MaintenanceReport
from langgraph_pgstate.arguments import configurable_of, several, thread_id_of
from langgraph_pgstate.assistants import Assistants, AsyncAssistants
from langgraph_pgstate.checkpoints.hooks import PutHook, PutHooks
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.serializer import state_serializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import (
    AsyncConnectionPool,
    AsyncDatabase,
    AsyncPsycopgConnection,
    Check,
    ConnectionPool,
    Database,
    PsycopgConnection,
)
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.finishing import complete, entered_in_thread
from langgraph_pgstate.db.owning import AtExit, Opening
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner
from langgraph_pgstate.db.tenants import tenant_of
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.files import AsyncFiles, Files
from langgraph_pgstate.interrupts.api import AsyncInterrupts, Interrupts
from langgraph_pgstate.keep import (
    Archive,
    AsyncArchive,
    AsyncParquet,
    AsyncPrivacy,
    AsyncRetention,
    Parquet,
    Privacy,
    Retention,
)
from langgraph_pgstate.leases.api import AsyncLeases, Leases
from langgraph_pgstate.options import (
    DEFAULT_EMBEDDED_PATH,
    ConnectionOptions,
    SaverOptions,
    ThreadKeys,
    TtlStrategy,
    check_options,
    database_options,
    schema_of,
)
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.record import AsyncRecorder, Recorder, conversations, journal
from langgraph_pgstate.record.audit import AsyncAudit, Audit
from langgraph_pgstate.record.events import AsyncEvents, Events
from langgraph_pgstate.record.message_hook import MessageHook
from langgraph_pgstate.record.messages import AsyncMessages, Messages
from langgraph_pgstate.record.options import DEFAULT_STREAM_TTL, RecorderSettings
from langgraph_pgstate.record.prices import AsyncPrices, Prices
from langgraph_pgstate.record.projections import ProjectionHook, check_projectable
from langgraph_pgstate.record.spans import AsyncSpans, Spans
from langgraph_pgstate.record.types import BackfillReport
from langgraph_pgstate.runs import AsyncRuns, AsyncWebhooks, Runs, Webhooks
from langgraph_pgstate.runs.options import KeySource, WebhookSettings
from langgraph_pgstate.saver import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.schedules import AsyncSchedules, Schedules
from langgraph_pgstate.schema import moving, tenancy
from langgraph_pgstate.schema import setup as schemas
from langgraph_pgstate.schema.queries import Queries, queries
from langgraph_pgstate.schema.tenancy import Tenancy, of_tenant
from langgraph_pgstate.schema.types import TenancyMove, TenancyProgress
from langgraph_pgstate.threads import AsyncThreads, Threads, prune
from langgraph_pgstate.threads.expiry import ExpiryHook
from langgraph_pgstate.threads.types import Progress
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger, ToolPolicy, ToolSettings

if TYPE_CHECKING:
    from langgraph_pgstate.memory.options import MemoryOptions
    from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore

G = TypeVar("G")
T = TypeVar("T")
P = ParamSpec("P")

# Seconds that the exit of a process waits for an event loop in another thread.
_EXIT_SECONDS: Final = 10.0


class _Fresh(Database):
    """A database that writes the recorder's waiting records before each operation, so that operations read them."""

    def __init__(self, database: Database, recorder: Recorder) -> None:
        self.schema, self.tenant = database.schema, database.tenant
        self._inner, self._recorder = database, recorder

    def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Write waiting records, and run an operation."""
        self._recorder.catch_up()
        return self._inner.run(operation, *args, **kwargs)

    def for_tenant(self, tenant: str, check: Check | None = None) -> Database:
        """Return the database of a tenant, whose state has its own recorder."""
        return self._inner.for_tenant(tenant, check)


class _AsyncFresh(AsyncDatabase):
    """Asynchronous twin of `_Fresh`."""

    def __init__(self, database: AsyncDatabase, recorder: AsyncRecorder) -> None:
        self.schema, self.tenant = database.schema, database.tenant
        self._inner, self._recorder = database, recorder

    async def run(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Async twin of `_Fresh.run`."""
        await self._recorder.catch_up()
        return await self._inner.run(operation, *args, **kwargs)

    def for_tenant(self, tenant: str, check: Check | None = None) -> AsyncDatabase:
        """Return the database of a tenant, whose state has its own recorder."""
        return self._inner.for_tenant(tenant, check)


class StateOptions(SaverOptions, total=False):
    """Options of a state, besides the options of its saver.

    Attributes:
        project: Channels of the root graph whose values are also stored as JSON. The JSON is clear text, even if
            `serde` encrypts the state.
        recording: Which inputs and outputs are recorded, and how often records are written. By default, contents are
            recorded only with LangGraph's own serializer.
        tools: Time limits and sizes of the ledger of tool executions.
        tool_policy: Policy of tools without a policy of their own.
        thread_ttl: How long new threads are kept after their last activity. By default, for ever. `threads.set_ttl` and
            `threads.expire` set another time for one thread.
        thread_ttl_strategy: What happens to expired threads: `delete`, the default, or `keep_latest`, which prunes
            them.
        graphs: Names of the graphs that may be enqueued. By default, any.
        run_key: Default key of enqueued runs: a path in the config, like `configurable.user_id`, or a function of the
            config. Runs of different keys take turns in the queue. By default, runs have no key.
        webhooks: Secret of webhooks, and networks to which webhooks may be delivered. By default, the values of
            `PGSTATE_WEBHOOK_SECRET` and `PGSTATE_WEBHOOK_NETWORKS`.
        memory: Indexes, times to live and versions of long-term memory; see `langgraph_pgstate.memory`.
        recover_journal: Whether reads of the record first move entries of dead processes from the journal to the
            tables. By default, true. If false, reads write nothing.
    """

    project: Sequence[str]
    recording: RecorderSettings | None
    tools: ToolSettings | None
    tool_policy: ToolPolicy | None
    thread_ttl: timedelta | None
    thread_ttl_strategy: TtlStrategy
    graphs: Collection[str] | None
    run_key: KeySource | None
    webhooks: WebhookSettings | None
    memory: MemoryOptions | None
    recover_journal: bool


class OpenStateOptions(StateOptions, ConnectionOptions, total=False):
    """Options of a state and of its connections."""


class _State:
    """The part of `PGState` and `AsyncPGState` that needs no connection."""

    _database: Any
    _queries: Queries
    _codec: ValueCodec
    _versions: StateVersions | None
    _project: tuple[str, ...]
    _recorder: Recorder | AsyncRecorder
    _tenants: dict[str, Any]
    _tool_settings: ToolSettings | None
    _tool_default: ToolPolicy | None
    _keys: ThreadKeys | None
    _graphs: Collection[str] | None
    _run_key: KeySource | None
    _webhook_settings: WebhookSettings
    _memory_options: MemoryOptions
    _counts_reads: bool

    def _prepare(self, options: StateOptions) -> None:
        self._queries = queries(schema_of(options))
        serde = state_serializer(options.get("serde"), options.get("allowed_types", ()), options.get("strict", False))
        self._codec = ValueCodec(serde)
        version = options.get("state_version")
        self._versions = None if version is None else StateVersions(version, options.get("upcasters"))
        graphs = options.get("graphs")
        self._keys, self._graphs = options.get("thread_keys"), None if graphs is None else {*several("graphs", graphs)}
        self._run_key = options.get("run_key")
        self._webhook_settings = options.get("webhooks") or WebhookSettings.from_environment()
        self._tool_settings, self._tool_default = options.get("tools"), options.get("tool_policy")
        self._memory_options = options.get("memory") or {}
        self._counts_reads = options.get("recover_journal", True)

    def _saver_options(self, options: StateOptions) -> SaverOptions:
        # Reset the options that the serializer and the database have already applied.
        shared: StateOptions = {
            **options,
            "serde": self._codec.serde,
            "allowed_types": (),
            "strict": False,
            "tenant": None,
        }
        return shared

    def _hooks(self, options: StateOptions) -> PutHooks:
        """Return the hooks of the saver's puts. The recorder is first, because it sets the run's id.

        Messages are copied in clear text only with LangGraph's own serializer, because another serializer may encrypt
        them. Projected channels are always copied, because the caller has named them.
        """
        project, thread_ttl = options.get("project") or (), options.get("thread_ttl")
        members: list[PutHook] = [self._recorder]
        if self._codec.is_native:
            members.append(MessageHook())
        if project:
            members.append(ProjectionHook(self._queries, project))
        if thread_ttl is not None:
            members.append(ExpiryHook(self._queries, thread_ttl, options.get("thread_ttl_strategy", "delete")))
        # `ProjectionHook` has checked the names.
        self._project = tuple(project)
        return PutHooks(*members)

    def _recording(self) -> RecorderSettings:
        # The caller's serializer may encrypt data, so do not also store the data in clear text.
        return RecorderSettings(content=self._codec.is_native)

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of the tables."""
        return self._queries.schema

    @property
    def tenant(self) -> str | None:
        """The only tenant whose rows this state sees and writes; `None` if tables do not keep tenants apart."""
        found: str | None = self._database.tenant
        return found

    def _check_tenant(self, tenant: str) -> str:
        """Return the validated name of a tenant. Refuse another tenant than this state's."""
        found = tenant_of(tenant)
        if self.tenant not in (None, found):
            raise ConfigurationError(
                f"this state is of tenant {self.tenant!r}: open tenant {found!r} from the state without a tenant"
            )
        return found

    async def _maintain(
        self, runner_of: Callable[[Any], Any], months: int, drop_older_than: int | None, stream_ttl: timedelta
    ) -> MaintenanceReport:
        """Maintain all tenants, one after the other. A tenant's state maintains only its own rows."""
        runner = runner_of(self._database)
        if self.tenant is not None:
            await runner.run(journal.recover, self._queries, 0.0, is_known_dead, self._recorder.own_runs())
            return await maintain_rows(runner, self._queries)
        tenants = None
        if await runner.run(tenancy.has_walls, self._queries):
            names = await runner.run(tenancy.list_tenants, self._queries)
            tenants = [runner_of(tenancy.of_tenant(self._database, name, self._queries)) for name in names]
        for one in tenants if tenants is not None else [runner]:
            state = self if tenants is None else self._tenants.get(one.database.tenant)
            own = () if state is None else state._recorder.own_runs()
            await one.run(journal.recover, self._queries, 0.0, is_known_dead, own)
        limits: Any = {"months": months, "drop_older_than": drop_older_than, "stream_ttl": stream_ttl}
        return await maintain(runner, self._queries, tenants, **limits)

    def record(self, graph: G) -> G:
        """Return a copy of a graph whose runs, spans and events are recorded.

        Raises:
            ConfigurationError: If the graph runs on another server, or a channel of `project=` is missing or has a type
                that JSON cannot represent.
        """
        if self._project:
            check_projectable(graph, self._project)
        return self._recorder.record(graph)

    def _run_of(self, config: Mapping[str, Any]) -> str | None:
        return self._recorder.run_id_of(thread_id_of(configurable_of(config).get("thread_id")))


class PGState(_State):
    """Checkpoints, record, tool executions and leases of a LangGraph application. Safe to share between threads.

    Args:
        connection: A psycopg `ConnectionPool`, or a `Connection`, that the caller owns and closes. With a pool, the
            recorder writes in the background. With a connection, the recorder writes at the end of a run, during the
            caller's call.
        options: See `StateOptions` and `SaverOptions`.

    Attributes:
        saver: The checkpointer, to compile into graphs.
        threads: Threads: search, metadata, branches, forks, labels, differences.
        archive: The archive: threads whose rows are stored outside of the database, and can be restored.
        retention: Policies of how long threads are kept.
        parquet: Parquet files for analysts.
        interrupts: Interrupts of threads, and answers.
        runs: The queue of runs, and the history of runs.
        schedules: Schedules, which enqueue runs at set times.
        webhooks: Webhooks, which report the ends of runs.
        assistants: Assistants: graphs with a config and a context of their own, for the server.
        files: Files of agents, in versions; for deepagents as `PGFiles(state, namespace=…)`.
        spans: Traces, and statistics of tools.
        tools: The ledger of tool executions.
        memory: Long-term memory, LangGraph's store.
        messages: Conversations, and full-text search.
        events: The audit trail.
        audit: Hash chains of events, if `setup(audit=True)` has turned them on.
        privacy: Export and erasure of what is stored about a person.
        prices: Prices of tokens.
        leases: Leases of threads.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> with PGState.open("postgresql://localhost/app", project=("booking",)) as state:
        ...     state.setup()
        ...     graph = state.record(builder.compile(checkpointer=state.saver))
    """

    _database: Database
    _recorder: Recorder
    _fresh: Database
    _resources: ExitStack
    _at_exit: AtExit[Any]

    def __init__(self, connection: PsycopgConnection | ConnectionPool[Any], **options: Unpack[StateOptions]) -> None:
        check_options(type(self), options, StateOptions)
        database = Database(connection, schema=schema_of(options), retry=options.get("retry"))
        self._use(database, options)

    @classmethod
    def over(cls, database: Database, options: StateOptions) -> Self:
        """Return a state on an open database. `options["retry"]` is not used."""
        state = cls.__new__(cls)
        state._use(database, options)
        return state

    def _use(self, database: Database, options: StateOptions) -> None:
        self._prepare(options)
        self._options: StateOptions = options
        self._tenants = {}
        use_keys(database, options.get("encryption"), self._queries)
        self._database = database = of_tenant(database, options.get("tenant"), self._queries)
        self._recorder = Recorder(
            database,
            options.get("recording") or self._recording(),
            keys=options.get("thread_keys"),
            is_encrypted=not self._codec.is_native,
        )
        self._fresh = _Fresh(database, self._recorder) if options.get("recover_journal", True) else database
        self.saver = PGStateSaver.over(database, self._saver_options(options), self._hooks(options))
        # The garbage collector closes the connections of a state. So every object that uses `database` must keep the
        # state alive.
        database.owner = self
        # Other resources that `close` closes.
        self._resources, self._at_exit = ExitStack(), AtExit(self, type(self).close)

    @classmethod
    def open(cls, dsn: str, **options: Unpack[OpenStateOptions]) -> Self:
        """Connect. The end of a `with` block, or `close`, writes waiting records and disconnects.

        Args:
            dsn: A libpq connection string or URI.
            options: See `StateOptions`, `SaverOptions` and `ConnectionOptions`.

        Raises:
            UnavailableError: If the server does not respond.
            ConfigurationError: If an argument is invalid.
        """
        return cls._open(nullcontext(dsn), options)

    @classmethod
    def _open(cls, server: AbstractContextManager[str], options: OpenStateOptions) -> Self:
        check_options(cls, options, OpenStateOptions)
        with ExitStack() as stack:
            dsn = stack.enter_context(server)
            database = stack.enter_context(Database.open(dsn, **database_options(options)))
            state = cls.over(database, options)
            stack.callback(state._at_exit.cancel)
            state._recorder.learn_clock()
            state._resources = stack.pop_all()
        return state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @classmethod
    def embedded(cls, path: str | Path = DEFAULT_EMBEDDED_PATH, **options: Unpack[OpenStateOptions]) -> Self:
        """Start the PostgreSQL that the `embedded` extra installs, and set up the tables.

        Args:
            path: Data directory. It is made if it is missing, and is kept.
            options: As for `open`.
        """
        check_options(cls, options, OpenStateOptions)
        state = cls._open(embedded_server(path), options)
        try:
            state.setup()
        except BaseException:
            state.close()
            raise
        return state

    def for_tenant(self, tenant: str) -> Self:
        """Return a tenant's state over the same connections, which sees and writes only this tenant's rows.

        Each call returns the same object, until the object is closed. Closing this state closes it, too.

        Args:
            tenant: The tenant.

        Raises:
            ConfigurationError: If the name is invalid, or this state is another tenant's.
        """
        name = self._check_tenant(tenant)
        if self.tenant is not None:
            return self
        found: Self | None = self._tenants.get(name)
        if found is None:
            made = self._made_for(name)
            made._resources.callback(self._tenants.pop, name, None)
            found = cast("Self", self._tenants.setdefault(name, made))
        return found

    def _made_for(self, tenant: str) -> Self:
        made = self.over(self._database, {**self._options, "tenant": tenant})
        made.saver.share_cache_of(self.saver, tenant)
        return made

    def setup(
        self,
        *,
        metadata_index: bool = False,
        tenancy: Tenancy | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        audit: bool = False,
    ) -> None:
        """Make the tables, or bring them up to date; see `PGStateSaver.setup`."""
        tenants: Any = {"tenancy": tenancy, "operators": operators, "workers": workers}
        self.saver.setup(metadata_index=metadata_index, audit=audit, **tenants)
        if self._memory_options:
            self.memory.setup_indexes()

    def move_to_tenants(
        self,
        tenant: str | None = None,
        *,
        tenant_from: str | None = None,
        otherwise: str | None = None,
        namespace_part: int | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        switch: bool = True,
        progress: Callable[[TenancyProgress], None] | None = None,
    ) -> TenancyMove:
        """Move the rows of this schema to tenants that are kept apart, while the application goes on.

        Connect as the owner of the tables. If the move is stopped, call this again with the same arguments, or with
        none, to continue. Waiting records of this state are written first.

        Args:
            tenant: The tenant of all rows.
            tenant_from: Where to find a row's tenant if `tenant` is not given: `tenant_id`, `user_id` or `metadata.KEY`
                of the row's thread, or of the row if it has no thread.
            otherwise: The tenant of rows for which `tenant_from` finds none.
            namespace_part: Position, from 1, of the tenant's label in the namespaces of memories and files.
            operators: Roles that see the rows of all tenants.
            workers: Roles that may list the names of the tenants, besides the owner.
            switch: Whether to keep tenants apart at the end of the move. If false, the move is only prepared, and
                nothing changes for the application.
            progress: Called after each batch.

        Raises:
            ConfigurationError: If an argument is invalid, or another move was begun.
            TenantError: If rows have no tenant, or the server is older than PostgreSQL 15.
            ConflictError: If other transactions lock tables at each attempt to switch. Repeat the call.
        """
        rule, roles = moving.rule_of(tenant, tenant_from, namespace_part), tenancy.roles_of("rls", operators, workers)
        self.flush()
        made = moving.move_to_tenants(
            BlockingRunner(self._database.whole),
            self._queries,
            rule,
            otherwise,
            roles,
            switch=switch,
            progress=progress,
        )
        return run_blocking(made)

    def undo_move_to_tenants(self) -> bool:
        """Undo a move to tenants that has not ended, and return whether there was a move. No row is lost.

        Raises:
            TenantError: If the move has ended.
        """
        return run_blocking(moving.undo_move(BlockingRunner(self._database.whole), self._queries))

    def keeps_tenants_apart(self) -> bool:
        """Return whether the tables keep tenants apart, so that each call needs a tenant. One round trip."""
        return self._database.run(tenancy.has_walls, self._queries)

    def check_schema(self) -> None:
        """Check that the tables exist and have this package's version. Writes nothing.

        Raises:
            SchemaError: If the tables are missing, or have another version.
        """
        self._database.whole.run(schemas.check_version, self._queries)

    def recorder(self) -> Recorder:
        """Return the recorder as a callback handler, for `config["callbacks"]` of graphs that `record` did not return.

        The handler records a run on the thread that the config's metadata name as `thread_id`. Do not let clients set
        this key.
        """
        return self._recorder

    @cached_property
    def threads(self) -> Threads:
        """Threads: search, branches, forks and differences."""
        return Threads(self._fresh, self._queries, self._codec, self._versions)

    @cached_property
    def archive(self) -> Archive:
        """The archive: threads whose rows are outside of the database."""
        return Archive(self._fresh, self._queries)

    @cached_property
    def retention(self) -> Retention:
        """Policies of how long threads are kept."""
        return Retention(self._fresh, self._queries)

    @cached_property
    def parquet(self) -> Parquet:
        """Parquet files for analysts."""
        return Parquet(self._fresh, self._queries)

    @cached_property
    def interrupts(self) -> Interrupts:
        """Interrupts of threads, and their answers."""
        return Interrupts(self._fresh, self._queries, self.runs, self._codec)

    @cached_property
    def runs(self) -> Runs:
        """The queue of runs, and their history."""
        return Runs(
            self._fresh,
            self._queries,
            self._database,
            self._codec,
            self._versions,
            self._keys,
            self._graphs,
            self._run_key,
        )

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules, which enqueue runs at set times."""
        return Schedules(self._database, self._queries, self.runs)

    @cached_property
    def webhooks(self) -> Webhooks:
        """Webhooks, which report the ends of runs."""
        return Webhooks(self._database, self._queries, self._webhook_settings)

    @cached_property
    def assistants(self) -> Assistants:
        """Assistants: graphs with a config and a context of their own."""
        return Assistants(self._database, self._queries, self._codec)

    @cached_property
    def files(self) -> Files:
        """Files of agents, with all their versions. `PGFiles(state, namespace=…)` offers them to deepagents."""
        return Files(self._database, self._queries, self._codec, self._run_of)

    @cached_property
    def spans(self) -> Spans:
        """Timed operations in runs."""
        return Spans(self._fresh, self._queries)

    @cached_property
    def messages(self) -> Messages:
        """Chat messages."""
        return Messages(self._fresh, self._queries, self._codec, self._versions, self._database)

    @cached_property
    def events(self) -> Events:
        """The audit trail of threads."""
        return Events(self._fresh, self._queries)

    @cached_property
    def audit(self) -> Audit:
        """Hash chains of events, which reveal later changes."""
        return Audit(self._fresh, self._queries)

    @cached_property
    def privacy(self) -> Privacy:
        """Export and erasure of what is stored about a person."""
        return Privacy(self._fresh, self._queries, self._codec, self.tenant)

    @cached_property
    def prices(self) -> Prices:
        """Prices of tokens."""
        return Prices(self._database)

    @cached_property
    def leases(self) -> Leases:
        """Leases of threads."""
        return Leases(self._database, self._queries, self.saver.lease_manager)

    @cached_property
    def memory(self) -> PGMemoryStore:
        """Long-term memory, LangGraph's store: `compile(checkpointer=state.saver, store=state.memory)`."""
        from langgraph_pgstate.memory.store import PGMemoryStore

        return PGMemoryStore.over(
            self._database, self._queries, self._memory_options, self._run_of, counts_reads=self._counts_reads
        )

    @cached_property
    def tools(self) -> ToolLedger:
        """The ledger of tool executions: `ToolNode(tools, wrap_tool_call=state.tools)`."""
        return ToolLedger(
            self._database,
            self._queries,
            self._codec,
            settings=self._tool_settings,
            default=self._tool_default,
            run_of=self._run_of,
        )

    def maintain(
        self,
        *,
        months: int = 2,
        drop_older_than: int | None = None,
        stream_ttl: timedelta = DEFAULT_STREAM_TTL,
    ) -> MaintenanceReport:
        """Make partitions, end the runs of dead processes, and delete what has expired.

        Expired threads are deleted or pruned, as by `threads.sweep`. `overview` returns the stored reports.

        Args:
            months: Number of coming months for which partitions are made.
            drop_older_than: Number of months, before the current month, whose spans are kept. By default, all spans are
                kept.
            stream_ttl: Minimum time for which events of runs are kept. Events of runs in the queue are kept longer.
                Whole days (UTC) are dropped.
        """
        return run_blocking(self._maintain(BlockingRunner, months, drop_older_than, stream_ttl))

    def overview(self) -> DatabaseOverview:
        """Return an overview of the database: table sizes, migrations, maintenance, and the slowest statements."""
        return self._database.run(overview.get_overview, self._queries)

    def backfill(
        self, thread_ids: Sequence[str] | None = None, *, progress: Callable[[Progress], None] | None = None
    ) -> BackfillReport:
        """Record messages and interrupts of threads that were written without a recorder.

        Uses small transactions. Safe to repeat, to stop, and while runs go on. Runs, spans and events cannot be
        recorded later.

        Args:
            thread_ids: Only these threads.
            progress: Called after each thread.
        """
        run, report = self._database.run, BackfillReport()
        given = None if thread_ids is None else [*dict.fromkeys(map(thread_id_of, thread_ids))]
        total = run(prune.count_visited_threads, self._queries) if given is None else len(given)
        after = ""
        while ids := run(integrity.next_threads, self._queries, after) if given is None else given:
            for id in ids:
                report += run(conversations.backfill_thread, self._queries, self._codec.lenient(), id)
                if progress is not None:
                    progress(Progress(report.threads, total, report.checkpoints, id))
            if given is not None:
                break
            after = ids[-1]
        return report

    def flush(self) -> None:
        """Write waiting records."""
        self._recorder.flush()

    def close(self) -> None:
        """Write waiting records, and disconnect if `open` has connected. Safe to repeat.

        Close the state before your own pool. The exit of the process closes an open state. In a forked child, `close`
        does nothing.

        Raises:
            PGStateError: If waiting records could not be written.
        """
        self._at_exit.cancel()
        if self._database.is_forked:
            return
        with self._resources.pop_all():
            self._stop()

    def _stop(self) -> None:
        """Stop background work, and write waiting records."""
        for one in [*self._tenants.values()]:
            one.close()
        if "memory" in self.__dict__:
            self.memory.close()
        if "runs" in self.__dict__:
            self.runs.close()
        if "tools" in self.__dict__:
            self.tools.close()
        self.saver.lease_manager.close()
        self._recorder.close()


class AsyncPGState(_State):
    """Asynchronous twin of `PGState`, bound to the event loop in which it was made."""

    _database: AsyncDatabase
    _recorder: AsyncRecorder
    _fresh: AsyncDatabase
    _resources: AsyncExitStack
    _at_exit: AtExit[Any]

    def __init__(
        self, connection: AsyncPsycopgConnection | AsyncConnectionPool[Any], **options: Unpack[StateOptions]
    ) -> None:
        check_options(type(self), options, StateOptions)
        database = AsyncDatabase(connection, schema=schema_of(options), retry=options.get("retry"))
        self._use(database, options)

    @classmethod
    def over(cls, database: AsyncDatabase, options: StateOptions) -> Self:
        """Return a state on an open database. `options["retry"]` is not used."""
        state = cls.__new__(cls)
        state._use(database, options)
        return state

    def _use(self, database: AsyncDatabase, options: StateOptions) -> None:
        self._prepare(options)
        self._options: StateOptions = options
        self._tenants = {}
        use_keys(database, options.get("encryption"), self._queries)
        self._database = database = of_tenant(database, options.get("tenant"), self._queries)
        self._recorder = AsyncRecorder(
            database,
            options.get("recording") or self._recording(),
            keys=options.get("thread_keys"),
            is_encrypted=not self._codec.is_native,
        )
        self._fresh = _AsyncFresh(database, self._recorder) if options.get("recover_journal", True) else database
        self.saver = AsyncPGStateSaver.over(database, self._saver_options(options), self._hooks(options))
        # The garbage collector closes the connections of a state. So every object that uses `database` must keep the
        # state alive.
        database.owner = self
        self._resources, self._at_exit = AsyncExitStack(), AtExit(self, type(self)._close_at_exit)

    @classmethod
    def open(cls, dsn: str, **options: Unpack[OpenStateOptions]) -> Opening[Self]:
        """Async twin of `PGState.open`. Enter the result with `async with`, or await it and `close` the state."""
        return Opening(partial(cls._open, nullcontext(dsn), options), cls.close)

    @classmethod
    async def _open(cls, server: AbstractAsyncContextManager[str], options: OpenStateOptions) -> Self:
        check_options(cls, options, OpenStateOptions)
        async with AsyncExitStack() as stack:
            dsn = await stack.enter_async_context(server)
            database = await stack.enter_async_context(AsyncDatabase.open(dsn, **database_options(options)))
            state = cls.over(database, options)
            stack.callback(state._at_exit.cancel)
            await state._recorder.learn_clock()
            state._resources = stack.pop_all()
        return state

    @classmethod
    def embedded(cls, path: str | Path = DEFAULT_EMBEDDED_PATH, **options: Unpack[OpenStateOptions]) -> Opening[Self]:
        """Async twin of `PGState.embedded`, used like `open`."""

        async def open() -> Self:
            state = await cls._open(entered_in_thread(embedded_server(path)), options)
            try:
                await state.setup()
            except BaseException:
                await state.close()
                raise
            return state

        return Opening(open, cls.close)

    def for_tenant(self, tenant: str) -> Self:
        """Async twin of `PGState.for_tenant`, but not a coroutine."""
        name = self._check_tenant(tenant)
        if self.tenant is not None:
            return self
        found: Self | None = self._tenants.get(name)
        if found is None:
            made = self._made_for(name)
            made._resources.callback(self._tenants.pop, name, None)
            found = cast("Self", self._tenants.setdefault(name, made))
        return found

    def _made_for(self, tenant: str) -> Self:
        made = self.over(self._database, {**self._options, "tenant": tenant})
        made.saver.share_cache_of(self.saver, tenant)
        return made

    async def setup(
        self,
        *,
        metadata_index: bool = False,
        tenancy: Tenancy | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        audit: bool = False,
    ) -> None:
        """Async twin of `PGState.setup`."""
        tenants: Any = {"tenancy": tenancy, "operators": operators, "workers": workers}
        await self.saver.setup(metadata_index=metadata_index, audit=audit, **tenants)
        if self._memory_options:
            await self.memory.setup_indexes()

    async def move_to_tenants(
        self,
        tenant: str | None = None,
        *,
        tenant_from: str | None = None,
        otherwise: str | None = None,
        namespace_part: int | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        switch: bool = True,
        progress: Callable[[TenancyProgress], None] | None = None,
    ) -> TenancyMove:
        """Async twin of `PGState.move_to_tenants`."""
        rule, roles = moving.rule_of(tenant, tenant_from, namespace_part), tenancy.roles_of("rls", operators, workers)
        await self.flush()
        return await moving.move_to_tenants(
            AsyncRunner(self._database.whole), self._queries, rule, otherwise, roles, switch=switch, progress=progress
        )

    async def undo_move_to_tenants(self) -> bool:
        """Async twin of `PGState.undo_move_to_tenants`."""
        return await moving.undo_move(AsyncRunner(self._database.whole), self._queries)

    async def keeps_tenants_apart(self) -> bool:
        """Async twin of `PGState.keeps_tenants_apart`."""
        return await self._database.run(tenancy.has_walls, self._queries)

    async def check_schema(self) -> None:
        """Async twin of `PGState.check_schema`."""
        await self._database.whole.run(schemas.check_version, self._queries)

    def recorder(self) -> AsyncRecorder:
        """Async twin of `PGState.recorder`, but not a coroutine."""
        return self._recorder

    @cached_property
    def threads(self) -> AsyncThreads:
        """Threads: search, branches, forks and differences."""
        return AsyncThreads(self._fresh, self._queries, self._codec, self._versions)

    @cached_property
    def archive(self) -> AsyncArchive:
        """The archive: threads whose rows are outside of the database."""
        return AsyncArchive(self._fresh, self._queries)

    @cached_property
    def retention(self) -> AsyncRetention:
        """Policies of how long threads are kept."""
        return AsyncRetention(self._fresh, self._queries)

    @cached_property
    def parquet(self) -> AsyncParquet:
        """Parquet files for analysts."""
        return AsyncParquet(self._fresh, self._queries)

    @cached_property
    def interrupts(self) -> AsyncInterrupts:
        """Interrupts of threads, and their answers."""
        return AsyncInterrupts(self._fresh, self._queries, self.runs, self._codec)

    @cached_property
    def runs(self) -> AsyncRuns:
        """The queue of runs, and their history."""
        return AsyncRuns(
            self._fresh,
            self._queries,
            self._database,
            self._codec,
            self._versions,
            self._keys,
            self._graphs,
            self._run_key,
        )

    @cached_property
    def schedules(self) -> AsyncSchedules:
        """Schedules, which enqueue runs at set times."""
        return AsyncSchedules(self._database, self._queries, self.runs)

    @cached_property
    def webhooks(self) -> AsyncWebhooks:
        """Webhooks, which report the ends of runs."""
        return AsyncWebhooks(self._database, self._queries, self._webhook_settings)

    @cached_property
    def assistants(self) -> AsyncAssistants:
        """Assistants: graphs with a config and a context of their own."""
        return AsyncAssistants(self._database, self._queries, self._codec)

    @cached_property
    def files(self) -> AsyncFiles:
        """Files of agents, with all their versions. `PGFiles(state, namespace=…)` offers them to deepagents."""
        return AsyncFiles(self._database, self._queries, self._codec, self._run_of)

    @cached_property
    def spans(self) -> AsyncSpans:
        """Timed operations in runs."""
        return AsyncSpans(self._fresh, self._queries)

    @cached_property
    def messages(self) -> AsyncMessages:
        """Chat messages."""
        return AsyncMessages(self._fresh, self._queries, self._codec, self._versions, self._database)

    @cached_property
    def events(self) -> AsyncEvents:
        """The audit trail of threads."""
        return AsyncEvents(self._fresh, self._queries)

    @cached_property
    def audit(self) -> AsyncAudit:
        """Hash chains of events, which reveal later changes."""
        return AsyncAudit(self._fresh, self._queries)

    @cached_property
    def privacy(self) -> AsyncPrivacy:
        """Export and erasure of what is stored about a person."""
        return AsyncPrivacy(self._fresh, self._queries, self._codec, self.tenant)

    @cached_property
    def prices(self) -> AsyncPrices:
        """Prices of tokens."""
        return AsyncPrices(self._database)

    @cached_property
    def leases(self) -> AsyncLeases:
        """Leases of threads."""
        return AsyncLeases(self._database, self._queries, self.saver.lease_manager)

    @cached_property
    def memory(self) -> AsyncPGMemoryStore:
        """Long-term memory, LangGraph's store: `compile(checkpointer=state.saver, store=state.memory)`."""
        from langgraph_pgstate.memory.store import AsyncPGMemoryStore

        return AsyncPGMemoryStore.over(
            self._database, self._queries, self._memory_options, self._run_of, counts_reads=self._counts_reads
        )

    @cached_property
    def tools(self) -> AsyncToolLedger:
        """The ledger of tool executions: `ToolNode(tools, awrap_tool_call=state.tools)`."""
        return AsyncToolLedger(
            self._database,
            self._queries,
            self._codec,
            settings=self._tool_settings,
            default=self._tool_default,
            run_of=self._run_of,
        )

    async def maintain(
        self,
        *,
        months: int = 2,
        drop_older_than: int | None = None,
        stream_ttl: timedelta = DEFAULT_STREAM_TTL,
    ) -> MaintenanceReport:
        """Async twin of `PGState.maintain`."""
        return await self._maintain(AsyncRunner, months, drop_older_than, stream_ttl)

    async def overview(self) -> DatabaseOverview:
        """Async twin of `PGState.overview`."""
        return await self._database.run(overview.get_overview, self._queries)

    async def backfill(
        self, thread_ids: Sequence[str] | None = None, *, progress: Callable[[Progress], None] | None = None
    ) -> BackfillReport:
        """Async twin of `PGState.backfill`."""
        run, report = self._database.run, BackfillReport()
        given = None if thread_ids is None else [*dict.fromkeys(map(thread_id_of, thread_ids))]
        total = await run(prune.count_visited_threads, self._queries) if given is None else len(given)
        after = ""
        while ids := await run(integrity.next_threads, self._queries, after) if given is None else given:
            for id in ids:
                report += await run(conversations.backfill_thread, self._queries, self._codec.lenient(), id)
                if progress is not None:
                    progress(Progress(report.threads, total, report.checkpoints, id))
            if given is not None:
                break
            after = ids[-1]
        return report

    async def flush(self) -> None:
        """Async twin of `PGState.flush`."""
        await self._recorder.flush()

    async def close(self) -> None:
        """Async twin of `PGState.close`. A cancellation does not interrupt it."""
        self._at_exit.cancel()
        if not self._database.is_forked:
            await complete(self._close())

    async def _close(self) -> None:
        async with self._resources.pop_all():
            await self._stop()

    def _close_at_exit(self) -> None:
        """Write waiting records at exit. The event loop may have ended."""
        loop = self.saver.loop
        if loop is not None and loop.is_running():
            # The event loop still runs in a daemon thread, so close the state on this loop.
            asyncio.run_coroutine_threadsafe(self.close(), loop).result(_EXIT_SECONDS)
        else:
            self._recorder.write_at_exit()

    async def _stop(self) -> None:
        for one in [*self._tenants.values()]:
            await one.close()
        if "memory" in self.__dict__:
            await self.memory.close()
        if "runs" in self.__dict__:
            await self.runs.close()
        if "tools" in self.__dict__:
            await self.tools.close()
        await self.saver.lease_manager.close()
        await self._recorder.close()


S = TypeVar("S", PGState, AsyncPGState)


class Core(NamedTuple):
    """The parts of a state that the worker, the server and the metrics use."""

    database: Database | AsyncDatabase
    queries: Queries
    codec: ValueCodec
    keys: ThreadKeys
    project: tuple[str, ...]
    memory: MemoryOptions
    run_of: Callable[[Mapping[str, Any]], str | None]


def core_of(state: PGState | AsyncPGState) -> Core:
    """Return the parts of a state that the worker, the server and the metrics use."""
    keys, memory = state._keys or ThreadKeys(), state._memory_options
    return Core(state._database, state._queries, state._codec, keys, state._project, memory, state._run_of)


def tenant_state(state: S, tenant: str) -> S:
    """Return a new state of a tenant, which the caller closes."""
    return state._made_for(state._check_tenant(tenant))
