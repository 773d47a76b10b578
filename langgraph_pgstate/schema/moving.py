"""The move of a schema with rows to separate tenants, while the application runs.

1. Each table gets a tenant column. Its default is the tenant of all rows, or `*` for no tenant.
2. Rows get their tenants in batches, and keys that begin with the tenant are built. The old keys stay meanwhile.
3. The switch, one transaction, gives the remaining rows their tenants, exchanges the keys and forces the policies.

The application names no tenant before the switch. The state of the move is stored in the tables, so another call can
continue a move that was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.db.tenants import OF_NO_TENANT, tenant_of
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, ConflictError, DatabaseError, TenantError
from langgraph_pgstate.schema.queries import Queries, analyze, drop_built_key, move, wall_tenants
from langgraph_pgstate.schema.tenancy import Roles, check_server, has_walls, list_keys, make_walls, tenant_queries
from langgraph_pgstate.schema.types import TenancyMove, TenancyProgress

OnProgress = Callable[[TenancyProgress], None]

# Number of 8 kB pages in a batch. Other transactions may wait for a batch, so a batch must take only milliseconds.
_BLOCKS: Final = 64
# Other transactions wait during an attempt to switch, so each attempt has short timeouts, and there are many attempts.
_LOCK_TIMEOUT: Final = "300ms"
_STATEMENT_TIMEOUT: Final = "1s"
_ATTEMPTS: Final = 120
_MAX_DELAY: Final = 5.0
# Indexes of partitions up to this size are built within the switch.
_SMALL_BYTES: Final = 8_000_000
# Maximum number of further attempts to find tenants for rows that have none.
_LOOKS: Final = 3
# The SQLSTATEs of a lock that is not available, and of a statement that took too long.
_TIMEOUTS: Final = ("55P03", "57014")


@dataclass(frozen=True)
class Rule:
    """The rule by which a row gets its tenant.

    Attributes:
        tenant: The tenant of all rows.
        tenant_from: `tenant_id`, `user_id` or `metadata.KEY` of the thread, or of a row that has no thread.
        namespace_part: Position, from 1, of the tenant's label in the namespaces of memories and files.
    """

    tenant: str | None = None
    tenant_from: str | None = None
    namespace_part: int | None = None

    @property
    def words(self) -> str:
        """The rule as arguments of `move_to_tenants`."""
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items() if value is not None)


class _Place(NamedTuple):
    """The rows that a script changes.

    Attributes:
        relation: The table or partition; empty for all tables.
        first: Number of the first block; empty for all blocks.
        following: Number of the block after the last one.
    """

    relation: str
    first: str = ""
    following: str = ""


def rule_of(tenant: str | None, tenant_from: str | None, namespace_part: int | None) -> Rule | None:
    """Return the rule that the arguments of a move give; `None` to continue the move that was begun."""
    if tenant is not None:
        if tenant_from is not None or namespace_part is not None:
            raise ConfigurationError("tenant must be given alone, because all rows get this tenant")
        return Rule(tenant_of(tenant))
    if namespace_part is not None and (type(namespace_part) is not int or namespace_part < 1):
        raise ConfigurationError(f"namespace_part must be a number of 1 or more, got {namespace_part!r}")
    if tenant_from is None:
        if namespace_part is not None:
            raise ConfigurationError(
                "namespace_part requires tenant_from: namespace_part finds the tenants of memories and files, and "
                "tenant_from finds the tenants of threads"
            )
        return None
    if not isinstance(tenant_from, str):
        raise ArgumentTypeError(f"tenant_from must be a string, not {type(tenant_from).__name__}")
    kind, _, path = tenant_from.partition(".")
    if tenant_from not in ("tenant_id", "user_id") and not (kind == "metadata" and all(path.split("."))):
        raise ConfigurationError(f"tenant_from must be tenant_id, user_id or metadata.KEY, got {tenant_from!r}")
    return Rule(None, tenant_from, namespace_part)


async def move_to_tenants(
    runner: Runner,
    queries: Queries,
    rule: Rule | None,
    otherwise: str | None,
    roles: Roles,
    *,
    switch: bool,
    progress: OnProgress | None,
) -> TenancyMove:
    """Move the rows of a schema to tenants. Safe to stop, to repeat, and while the application runs.

    Args:
        runner: The database, without a tenant.
        queries: The queries of its schema.
        rule: The rule by which a row gets its tenant; `None` for the rule of the move that was begun.
        otherwise: The tenant of rows for which the rule finds none; `None` to leave them without a tenant.
        roles: Roles that see more than one tenant.
        switch: Whether to make the switch at the end. If not, the move is only prepared.
        progress: Called after each batch and each key.

    Raises:
        ConfigurationError: If there is no rule, another move was begun, or a transaction is open.
        TenantError: If rows have no tenant, or the server is too old.
        ConflictError: If other transactions lock tables during each attempt to switch.
    """
    rest = None if otherwise is None else tenant_of(otherwise)
    if await runner.run(has_walls, queries):
        await runner.run(_end, queries)
        return TenancyMove(is_switched=True, had_ended=True)
    used = await runner.run(_begin, queries, rule, roles)
    given = {**asdict(used), "otherwise": rest}

    async def prepare() -> None:
        while names := await runner.run(_list_unprepared, queries):
            await _run_when_unlocked(runner, _prepare, queries, given, names[0])

    await prepare()
    moved = 0
    for turn in range(2):
        if used.tenant is None:
            moved += await _move_blocks(runner, queries, given, progress)
        if turn == 0:
            await _build_keys(runner, queries, progress)
            for relation, _ in await runner.run(_list_tables, queries):
                await runner.run(_analyze, queries, relation)
    left = await _move_rest(runner, queries, given)
    for _ in range(_LOOKS):
        if not left or rest is not None:
            break
        # Other transactions may store the tenants of these rows a moment later.
        await runner.sleep(1)
        left = await _move_rest(runner, queries, given)
    if rest is not None:
        left = {}
    tenants = await runner.run(_count_tenants, queries)
    if not switch:
        return TenancyMove(False, moved, tenants, left)
    if left:
        raise _without_tenant(left)
    for turn in range(_ATTEMPTS):
        # Other processes may have made partitions meanwhile.
        await prepare()
        await _build_keys(runner, queries, progress)
        await _move_rest(runner, queries, given)
        if await _run_unless_locked(runner, _switch, queries, given, roles):
            await runner.run(_end, queries)
            return TenancyMove(True, moved, tenants)
        await runner.sleep(_delay(turn))
    raise ConflictError(
        "the switch failed, because other transactions locked the tables: end these transactions, and try again"
    )


async def undo_move(runner: Runner, queries: Queries) -> bool:
    """Undo a move that has not ended, and return whether there was one. No row is lost.

    Raises:
        TenantError: If the move has ended.
    """
    if await runner.run(has_walls, queries):
        raise TenantError("the move has ended, and cannot be undone")
    if await runner.run(_get_rule, queries) is None:
        return False
    await _run_when_unlocked(runner, _undo, queries)
    return True


async def _run_when_unlocked(runner: Runner, operation: Callable[..., Awaitable[bool]], /, *args: object) -> None:
    """Run an operation, and repeat it while other transactions lock a table. After `_ATTEMPTS`, raise."""
    for turn in range(_ATTEMPTS):
        if await _run_unless_locked(runner, operation, *args):
            return
        await runner.sleep(_delay(turn))
    raise ConflictError(
        "a table could not be changed, because other transactions locked it: end these transactions, and try again"
    )


async def _run_unless_locked(runner: Runner, operation: Callable[..., Awaitable[bool]], /, *args: object) -> bool:
    """Run an operation and return its result; false if other transactions lock a table."""
    try:
        return await runner.run(operation, *args)
    except DatabaseError as error:
        if error.sqlstate not in _TIMEOUTS:
            raise
        return False


def _delay(turn: int) -> float:
    return float(min(_MAX_DELAY, 0.2 * 2**turn))


async def _begin(db: Connection, queries: Queries, rule: Rule | None, roles: Roles) -> Rule:
    """Begin a move, or check that the begun move has the same rule. Return the rule."""
    if db.is_in_transaction:
        raise ConfigurationError("a move to tenants must be called outside of a transaction, because it uses many")
    await check_server(db, queries)
    names = [*roles.operators, *roles.workers]
    if missing := [row[0] for row in await db.fetch(queries.find_missing_roles, {"names": names})]:
        raise ConfigurationError(f"operators and workers must be existing roles, got {', '.join(missing)}")
    begun = await _get_rule(db, queries)
    if begun is None and rule is None:
        raise ConfigurationError("tenant or tenant_from must be given, because no move was begun")
    if rule is not None:
        _check_begun(begun, asdict(rule))
    found = begun or rule
    assert found is not None
    await _refuse_shared(db, queries, found.tenant)
    if begun is None:
        async with db.transaction():
            await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
            await db.script(wall_tenants(queries.schema))
    return found


def _check_begun(begun: Rule | None, rule: Mapping[str, object]) -> None:
    if begun is not None and not asdict(begun).items() <= rule.items():
        raise ConfigurationError(f"another move was begun, by {begun.words}: continue that move, or undo it first")


async def _refuse_shared(db: Connection, queries: Queries, tenant: str | None) -> None:
    """Raise `TenantError` if rows serve threads of all tenants, so that they cannot be divided among tenants."""
    if tenant is None and (shared := [row[0] for row in await db.fetch(queries.find_shared_rows, {})]):
        raise TenantError(
            f"rows of {', '.join(shared)} serve all threads, and cannot be divided among tenants: move all rows to one "
            "tenant, by tenant=... or --to"
        )


async def _get_rule(db: Connection, queries: Queries) -> Rule | None:
    rows = await db.fetch(queries.get_move, {"threads": f'"{queries.schema}".threads'})
    return Rule(**json.loads(rows[0][0])) if rows else None


async def _list_unprepared(db: Connection, queries: Queries) -> list[str]:
    parameters = {"schema": f'"{queries.schema}"', "of_no_tenant": [*OF_NO_TENANT]}
    return [row[0] for row in await db.fetch(queries.list_unprepared, parameters)]


async def _plan(
    db: Connection, queries: Queries, rule: dict[str, object], place: _Place, *, is_last: bool = False
) -> None:
    """Set the parameters of the next script, in its transaction. Raise if another move was begun meanwhile."""
    _check_begun(await _get_rule(db, queries), rule)
    parameters = {**place._asdict(), "rule": json.dumps(rule), "is_last": is_last, "of_no_tenant": [*OF_NO_TENANT]}
    await db.fetch(queries.plan_move, parameters)


async def _prepare(db: Connection, queries: Queries, rule: dict[str, object], relation: str) -> bool:
    """Add the tenant column to a table. One transaction."""
    # Do not store `otherwise`, which may differ in another call that continues the move.
    kept = {name: value for name, value in rule.items() if name != "otherwise"}
    async with db.transaction():
        await db.fetch(queries.limit_wait, {"lock": _LOCK_TIMEOUT, "statement": "0"})
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        if relation in await _list_unprepared(db, queries):
            await _plan(db, queries, kept, _Place(relation))
            await db.script(move(queries.schema, "prepare"))
    return True


async def _list_tables(db: Connection, queries: Queries) -> list[tuple[str, int]]:
    parameters = {"schema": f'"{queries.schema}"', "of_no_tenant": [*OF_NO_TENANT]}
    return [(name, blocks) for name, blocks in await db.fetch(queries.list_moved_tables, parameters)]


async def _move_blocks(runner: Runner, queries: Queries, rule: dict[str, object], progress: OnProgress | None) -> int:
    """Set the tenants of rows in all tables, block by block. Return the number of rows."""
    moved = 0
    for relation, blocks in await runner.run(_list_tables, queries):
        for first in range(0, blocks, _BLOCKS):
            place = _Place(relation, str(first), str(first + _BLOCKS))
            moved += (await runner.run(_move_rows, queries, rule, place))[0]
            if progress is not None:
                progress(TenancyProgress("rows", relation, min(first + _BLOCKS, blocks), blocks))
    return moved


async def _move_rest(runner: Runner, queries: Queries, rule: dict[str, object]) -> dict[str, int]:
    """Set the tenants of rows that were written meanwhile. Return the number of rows without a tenant by table."""
    left = {}
    if rule["tenant"] is None:
        for relation, _ in await runner.run(_list_tables, queries):
            _, count = await runner.run(_move_rows, queries, rule, _Place(relation))
            if count:
                left[relation] = count
    return left


async def _move_rows(
    db: Connection, queries: Queries, rule: dict[str, object], place: _Place, is_last: bool = False
) -> tuple[int, int]:
    """Set tenants of rows. Return how many rows got a tenant, and how many have none. One transaction."""
    async with db.transaction():
        await _plan(db, queries, rule, place, is_last=is_last)
        await db.script(move(queries.schema, "rows"))
        moved, left = (await db.fetch(queries.get_moved, {}))[0]
        return int(moved), int(left)


class _BuiltKey(NamedTuple):
    """A key that is built before the switch.

    Attributes:
        name: Name of the index until the switch.
        making: The statement that builds the index.
        size: Bytes of the table.
        is_complete: Whether the index is complete.
        is_in_work: Whether a process is building the index.
    """

    name: str
    making: str
    size: int
    is_complete: bool
    is_in_work: bool


async def _list_built_keys(db: Connection, queries: Queries) -> list[_BuiltKey]:
    keys = await list_keys(db, queries)
    parameters = {
        "schema": f'"{queries.schema}"',
        "tables": [key.table_name for key in keys],
        "makings": [key.making for key in keys],
    }
    return [_BuiltKey(*row) for row in await db.fetch(queries.list_built_keys, parameters)]


async def _build_keys(runner: Runner, queries: Queries, progress: OnProgress | None) -> None:
    """Build the keys that begin with the tenant. Raise `TenantError` if another process is building a key."""
    keys = await runner.run(_list_built_keys, queries)
    for done, key in enumerate(keys, 1):
        if not key.is_complete:
            if key.is_in_work:
                raise TenantError("another process is moving this schema: wait until it has ended")
            await runner.run(_build_key, queries, key)
        if progress is not None:
            progress(TenancyProgress("keys", key.name, done, len(keys)))


async def _build_key(db: Connection, queries: Queries, key: _BuiltKey) -> None:
    # A build that was stopped has left an incomplete index.
    await db.script(drop_built_key(queries.schema, key.name))
    await db.script(key.making)


async def _analyze(db: Connection, queries: Queries, relation: str) -> None:
    await db.script(analyze(queries.schema, relation))


async def _count_tenants(db: Connection, queries: Queries) -> int:
    return int((await db.fetch(tenant_queries(queries.schema).count_tenants, {}))[0][0])


async def _switch(db: Connection, queries: Queries, rule: dict[str, object], roles: Roles) -> bool:
    """Make the switch, and return whether it was possible. One transaction. Raise if rows have no tenant."""
    async with db.transaction():
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        await _plan(db, queries, rule, _Place(""), is_last=True)
        await db.fetch(queries.limit_wait, {"lock": _LOCK_TIMEOUT, "statement": _STATEMENT_TIMEOUT})
        await db.script(move(queries.schema, "lock"))
        await db.fetch(queries.limit_wait, {"lock": _LOCK_TIMEOUT, "statement": "0"})
        keys = await _list_built_keys(db, queries)
        if await _list_unprepared(db, queries) or any(not key.is_complete and key.size > _SMALL_BYTES for key in keys):
            return False
        if rule["tenant"] is None:
            await _refuse_shared(db, queries, None)
            left = {}
            for relation, _ in await _list_tables(db, queries):
                _, count = await _move_rows(db, queries, rule, _Place(relation), is_last=True)
                if count:
                    left[relation] = count
            if left:
                raise _without_tenant(left)
        await make_walls(db, queries, roles, is_moving=True)
    return True


async def _end(db: Connection, queries: Queries) -> None:
    """Validate the constraints that the switch has made. Safe to repeat."""
    async with db.transaction():
        await db.script(move(queries.schema, "end"))


async def _undo(db: Connection, queries: Queries) -> bool:
    async with db.transaction():
        await db.fetch(queries.limit_wait, {"lock": _LOCK_TIMEOUT, "statement": "0"})
        await db.fetch(queries.take_turns, {"key": f"langgraph_pgstate.setup.{queries.schema}"})
        await db.script(move(queries.schema, "undo"))
    return True


def _without_tenant(left: dict[str, int]) -> TenantError:
    words = ", ".join(f"{count} of {name}" for name, count in sorted(left.items()))
    return TenantError(f"the rule finds no tenant for rows ({words}): name a tenant by otherwise=... or --otherwise")
