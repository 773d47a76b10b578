"""The move of a schema with rows to tenants that are kept apart, while the application goes on.

Each table gets a tenant column, whose default all rows have at once: the tenant of all rows, or `*`, which is none.
Then rows get their tenants in batches, and the keys that begin with the tenant are built beside the others. Until the
switch, nothing of this is seen by the application, which names no tenant. The switch is one transaction: it gives the
last rows their tenants, exchanges the keys and forces the policies. All that was done is in the tables, so that a move
which was stopped goes on where it was.
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

# Pages of eight kilobytes: a batch takes milliseconds, and others wait for its rows no longer.
_BLOCKS: Final = 64
# Others wait for the switch so long at each attempt, and not longer than for the whole statement.
_LOCK_TIMEOUT: Final = "300ms"
_STATEMENT_TIMEOUT: Final = "1s"
_ATTEMPTS: Final = 120
_MAX_DELAY: Final = 5.0
# An index of a partition of this size is built within the switch.
_SMALL_BYTES: Final = 8_000_000
# Number of times that rows without a tenant are read again.
_LOOKS: Final = 3
# Not available at once; the statement took too long.
_TIMEOUTS: Final = ("55P03", "57014")


@dataclass(frozen=True)
class Rule:
    """The rule by which a row gets its tenant.

    Attributes:
        tenant: That of all rows.
        tenant_from: `tenant_id`, `user_id` or `metadata.KEY` of the thread, or of the row itself if it is of none.
        namespace_part: Number of the label in namespaces of memories and files that is the tenant, from 1.
    """

    tenant: str | None = None
    tenant_from: str | None = None
    namespace_part: int | None = None

    @property
    def words(self) -> str:
        """The arguments of `move_to_tenants` that make the rule."""
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items() if value is not None)


class _Place(NamedTuple):
    """The rows that a script works on.

    Attributes:
        relation: The table or partition; empty for all.
        first: Number of the first block; empty for all blocks.
        following: Number of the block after the last one.
    """

    relation: str
    first: str = ""
    following: str = ""


def rule_of(tenant: str | None, tenant_from: str | None, namespace_part: int | None) -> Rule | None:
    """Return the rule of a move; `None` for that of the one that was begun.

    Raises:
        ConfigurationError: If it is not usable.
    """
    if tenant is not None:
        if tenant_from is not None or namespace_part is not None:
            raise ConfigurationError("tenant is that of all rows: leave out tenant_from and namespace_part")
        return Rule(tenant_of(tenant))
    if namespace_part is not None and (type(namespace_part) is not int or namespace_part < 1):
        raise ConfigurationError(f"namespace_part must be a number from 1, got {namespace_part!r}")
    if tenant_from is None:
        if namespace_part is not None:
            raise ConfigurationError("namespace_part is for memories and files: give tenant_from for threads as well")
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
    """Move the rows of a schema to tenants. Safe to stop, to repeat, and while the application goes on.

    Args:
        runner: The database, of no tenant.
        queries: The queries of its schema.
        rule: Which tenant a row gets; `None` for the rule of the move that was begun.
        otherwise: The tenant of rows for which the rule has none; `None` to leave them without one.
        roles: Roles that see more than one tenant.
        switch: Whether tenants are kept apart at the end; else all is made ready for it.
        progress: Called after each batch.

    Raises:
        ConfigurationError: If there is no rule, another move was begun, or a transaction is open.
        TenantError: If rows have no tenant, or the server is too old.
        ConflictError: If transactions of others lock tables at each attempt to switch.
    """
    rest = None if otherwise is None else tenant_of(otherwise)
    if await runner.run(has_walls, queries):
        await runner.run(_end, queries)
        return TenancyMove(is_switched=True)
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
        # A row that is written just now may get its tenant a moment later.
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
        # Tables and partitions that were made meanwhile.
        await prepare()
        await _build_keys(runner, queries, progress)
        await _move_rest(runner, queries, given)
        if await _run_unless_locked(runner, _switch, queries, given, roles):
            await runner.run(_end, queries)
            return TenancyMove(True, moved, tenants)
        await runner.sleep(_delay(turn))
    raise ConflictError("transactions of others locked tables at each attempt to switch: end them, and repeat")


async def undo_move(runner: Runner, queries: Queries) -> bool:
    """Take back a move that has not ended, and return whether there was one. No row is lost.

    Raises:
        TenantError: If it has ended.
    """
    if await runner.run(has_walls, queries):
        raise TenantError("the move has ended, and tenants are kept apart: it cannot be taken back")
    if await runner.run(_get_rule, queries) is None:
        return False
    await _run_when_unlocked(runner, _undo, queries)
    return True


async def _run_when_unlocked(runner: Runner, operation: Callable[..., Awaitable[bool]], /, *args: object) -> None:
    """Run an operation, again and again while other transactions lock a table that it needs.

    Raises:
        ConflictError: If they do at each of `_ATTEMPTS` attempts.
    """
    for turn in range(_ATTEMPTS):
        if await _run_unless_locked(runner, operation, *args):
            return
        await runner.sleep(_delay(turn))
    raise ConflictError("transactions of others locked a table at each attempt to change it: end them, and repeat")


async def _run_unless_locked(runner: Runner, operation: Callable[..., Awaitable[bool]], /, *args: object) -> bool:
    """Run an operation and return its result; return false if other transactions lock a table that it needs."""
    try:
        return await runner.run(operation, *args)
    except DatabaseError as error:
        if error.sqlstate not in _TIMEOUTS:
            raise
        return False


def _delay(turn: int) -> float:
    return float(min(_MAX_DELAY, 0.2 * 2**turn))


async def _begin(db: Connection, queries: Queries, rule: Rule | None, roles: Roles) -> Rule:
    """Return the rule of the move, which must be that of the one that was begun."""
    if db.is_in_transaction:
        raise ConfigurationError("a move takes many transactions: call it outside of one")
    await check_server(db, queries)
    names = [*roles.operators, *roles.workers]
    if missing := [row[0] for row in await db.fetch(queries.find_missing_roles, {"names": names})]:
        raise ConfigurationError(f"there is no role {', '.join(missing)}")
    begun = await _get_rule(db, queries)
    if begun is None and rule is None:
        raise ConfigurationError("whose are the rows? Give tenant or tenant_from")
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
        raise ConfigurationError(f"another move was begun, by {begun.words}: repeat that one, or take it back first")


async def _refuse_shared(db: Connection, queries: Queries, tenant: str | None) -> None:
    """Refuse to divide rows among tenants while tables have rows that serve threads of all tenants.

    Raises:
        TenantError: If there are such rows.
    """
    if tenant is None and (shared := [row[0] for row in await db.fetch(queries.find_shared_rows, {})]):
        raise TenantError(
            f"rows of {', '.join(shared)} serve all threads, and cannot be divided among tenants: move all rows "
            "to one, by tenant=... or --to"
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
    """Set what the next script of a move works on, within its transaction.

    Raises:
        ConfigurationError: If another move was begun meanwhile, after this one was taken back.
    """
    _check_begun(await _get_rule(db, queries), rule)
    parameters = {**place._asdict(), "rule": json.dumps(rule), "is_last": is_last, "of_no_tenant": [*OF_NO_TENANT]}
    await db.fetch(queries.plan_move, parameters)


async def _prepare(db: Connection, queries: Queries, rule: dict[str, object], relation: str) -> bool:
    """Add the tenant column to a table. One transaction."""
    # The rest may differ when the move goes on.
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
    """Give rows their tenants, block after block of all tables, and return their number."""
    moved = 0
    for relation, blocks in await runner.run(_list_tables, queries):
        for first in range(0, blocks, _BLOCKS):
            place = _Place(relation, str(first), str(first + _BLOCKS))
            moved += (await runner.run(_move_rows, queries, rule, place))[0]
            if progress is not None:
                progress(TenancyProgress("rows", relation, min(first + _BLOCKS, blocks), blocks))
    return moved


async def _move_rest(runner: Runner, queries: Queries, rule: dict[str, object]) -> dict[str, int]:
    """Give rows their tenants that were written meanwhile, and return how many of each table have none by the rule."""
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
    """Give rows their tenants, and return their number, and that of rows without. One transaction."""
    async with db.transaction():
        await _plan(db, queries, rule, place, is_last=is_last)
        await db.script(move(queries.schema, "rows"))
        moved, left = (await db.fetch(queries.get_moved, {}))[0]
        return int(moved), int(left)


class _BuiltKey(NamedTuple):
    """A key that is built beside those of a table.

    Attributes:
        name: Name of its index, until the switch.
        making: The statement that builds it.
        size: Bytes of the table.
        is_complete: Whether it is built.
        is_in_work: Whether a process builds it now.
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
    """Build the keys that begin with the tenant beside the others.

    Raises:
        TenantError: If another process does.
    """
    keys = await runner.run(_list_built_keys, queries)
    for done, key in enumerate(keys, 1):
        if not key.is_complete:
            if key.is_in_work:
                raise TenantError("another process moves this schema now: wait for it")
            await runner.run(_build_key, queries, key)
        if progress is not None:
            progress(TenancyProgress("keys", key.name, done, len(keys)))


async def _build_key(db: Connection, queries: Queries, key: _BuiltKey) -> None:
    # One that was stopped is there, and incomplete.
    await db.script(drop_built_key(queries.schema, key.name))
    await db.script(key.making)


async def _analyze(db: Connection, queries: Queries, relation: str) -> None:
    await db.script(analyze(queries.schema, relation))


async def _count_tenants(db: Connection, queries: Queries) -> int:
    return int((await db.fetch(tenant_queries(queries.schema).count_tenants, {}))[0][0])


async def _switch(db: Connection, queries: Queries, rule: dict[str, object], roles: Roles) -> bool:
    """Keep tenants apart from now on, and return whether all was ready for it. One transaction.

    Raises:
        TenantError: If rows have no tenant.
    """
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
    """Check what the switch has left unchecked. Safe to repeat."""
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
    return TenantError(f"rows have no tenant by the rule ({words}): name one for them, by otherwise=... or --otherwise")
