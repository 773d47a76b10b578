"""Archives that a forger made: each digest is right, and rows, columns and positions are not.

A restore may succeed, or raise an error of this package. What it stored is read then, by errors of this package at
most. Rows of another thread never change.
"""

from __future__ import annotations

import random
import signal
import struct
import traceback
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from support.keep import config_of, make_rich_thread, rows_of

from langgraph_pgstate import PGState
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.keep import packing
from langgraph_pgstate.keep.objects import open_objects

from . import guard
from .mutating import TEXTS, changed, damaged, packable, packed, unpacked

_SECONDS = 30
_TEXT, _BYTES = 25, 17

Rows = dict[str, list[bytes]]


class Hang(BaseException):
    """A restore that takes too long."""


def _hang(number: int, frame: Any) -> None:
    raise Hang


def _fields(row: bytes) -> list[tuple[int, bytes | None]]:
    return [(type_, None if value[:4] == b"\xff" * 4 else value[4:]) for type_, value in packing._fields(row)]


def _row(fields: list[tuple[int, bytes | None]], count: int) -> bytes:
    parts = [struct.pack("!i", count)]
    for type_, value in fields:
        parts.append(struct.pack("!Ii", type_, -1 if value is None else len(value)) + (value or b""))
    return b"".join(parts)


def _forged_value(dice: random.Random, type_: int, value: bytes | None, others: list[bytes]) -> bytes | None:
    if value is not None and type_ == _BYTES and dice.random() < 0.6:
        # Behind a checksum that is right.
        try:
            content = frames.unpack(value, "")
            tree = changed(dice, unpacked(content), packable)
            return frames.pack(packed(tree))
        except (PGStateError, ValueError, TypeError):
            pass
    match dice.randrange(6):
        case 0:
            return None
        case 1:
            return dice.choice(TEXTS).encode("utf-8", "surrogatepass")
        case 2:
            return dice.choice(others)
        case 3:
            return b"victim"
        case _:
            return damaged(dice, [value or b"\0"])


def _forged_row(dice: random.Random, row: bytes, others: list[bytes]) -> bytes:
    if dice.random() < 0.1:
        return damaged(dice, [row])
    fields = _fields(row)
    count = len(fields)
    for _ in range(dice.choice((1, 1, 2))):
        place = dice.randrange(len(fields))
        type_, value = fields[place]
        match dice.randrange(12):
            case 0:
                fields[place] = (dice.choice((0, 16, 20, 23, 25, 1184, 3802, 2**31, 114)), value)
            case 1:
                del fields[place]
                count = dice.choice((count, len(fields)))
            case 2:
                fields.insert(place, fields[place])
                count = dice.choice((count, len(fields)))
            case _:
                fields[place] = (type_, _forged_value(dice, type_, value, others))
        if not fields:
            break
    return _row(fields, count)


def forge(dice: random.Random, rows: Rows, columns: packing.Columns, manifest: packing.Manifest) -> Any:
    """Return a pack and its manifest, whose digests are right."""
    rows = {table: [*found] for table, found in rows.items()}
    named = {table: [*found] for table, found in columns.items()}
    values = [value for found in rows.values() for row in found for _, value in _fields(row) if value is not None]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        table = dice.choice([*rows])
        match dice.randrange(14):
            case 0 if len(rows) > 1:
                del rows[table]
            case 1 if rows[table]:
                rows[table].append(dice.choice(rows[table]))
            case 2:
                place = dice.randrange(len(named[table]))
                name = dice.choice(("x", "pgstate_tenant", "thread_id", 'a"; DROP TABLE threads; --', ""))
                named[table][place] = (name, dice.choice(("text", "nothing", named[table][place][1])))
            case 3:
                dice.shuffle(named[table])
            case 4:
                other = dice.choice(("archives", "queue", "leases", "pg_class", "x", "data_keys", "threads"))
                rows[other], named[other] = rows.pop(table), named.pop(table)
            case 5 if rows[table]:
                rows[table].pop()
            case _ if rows[table]:
                place = dice.randrange(len(rows[table]))
                rows[table][place] = _forged_row(dice, rows[table][place], values)
    return packing.pack(
        {dice.choice(("t", "t", "t", "t", "u")): rows},
        named,
        archive_id=manifest.archive_id,
        created_at=manifest.created_at,
        schema_version=dice.choice((manifest.schema_version, manifest.schema_version, 0, 99)),
        tenant=dice.choice((None, None, None, None, "x")),
    )


class Archives:
    """A schema into which forged archives are restored.

    Args:
        dsn: The database.
        schema: A schema with its tables.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema, self._url = dsn, schema, ""
        self.outcomes, self.found = Counter[str](), Counter[str]()

    def run(self, seed: str, archives: int) -> None:
        """Forge and restore archives."""
        with PGState.open(self._dsn, schema=self._schema) as state:
            state.setup()
            graph = make_rich_thread(state, "t")
            if state.threads.get("victim") is None:
                make_rich_thread(state, "victim")
            self._url = f"memory://forged-{seed}"
            state.archive.put(["t"], to=f"memory://source-{seed}", idle_for=timedelta(0))
            source = open_objects(f"memory://source-{seed}")
            (name,) = source.list(packing.MANIFEST)
            manifest = packing.load_manifest(source.get(name), "source")
            frame = manifest.frames["t"]
            rows = packing.unpack(frame, source.get(manifest.archive_id + packing.PACK), "source")
            self._forget(state)
            before = rows_of(self._dsn, self._schema, "victim")
            signal.signal(signal.SIGALRM, _hang)
            for number in range(archives):
                dice = random.Random(f"{seed}.{number}")
                try:
                    data, made = forge(dice, rows, manifest.columns, manifest)
                except (struct.error, ValueError, IndexError, KeyError):
                    # No archive is made of these.
                    self.outcomes["not made"] += 1
                    continue
                forged = open_objects(self._url)
                forged.put(made.archive_id + packing.PACK, data)
                forged.put(made.archive_id + packing.MANIFEST, made.dump())
                self._restore(state, graph, f"seed {seed}.{number}", has_rest=dice.random() < 0.2)
                if rows_of(self._dsn, self._schema, "victim") != before:
                    self._add("another thread was changed", f"seed {seed}.{number}", "")
                    before = rows_of(self._dsn, self._schema, "victim")
                self._forget(state)

    def _restore(self, state: PGState, graph: Any, where: str, *, has_rest: bool) -> None:
        if has_rest:
            # A put that was in progress may leave rows.
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                table = sql.Identifier(self._schema, "labels")
                query = sql.SQL(
                    "INSERT INTO {} (thread_id, checkpoint_ns, checkpoint_id, label) VALUES ('t', '', 'c', 'rest')"
                )
                connection.execute(query.format(table))
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        with guard.watched() as seen:
            try:
                state.archive.restore(source=self._url)
                self.outcomes["restored"] += 1
                self._read(state, graph, where)
            except PGStateError as error:
                self.outcomes[type(error).__name__] += 1
            except (Exception, Hang) as error:
                self._fail(error, where)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        if seen:
            self._add(seen[0].partition(" ")[0], where, "\n".join(seen[:5]))

    def _read(self, state: PGState, graph: Any, where: str) -> None:
        """Read what was restored."""
        reads: tuple[Any, ...] = (
            lambda: graph.get_state(config_of("t")),
            lambda: [*graph.get_state_history(config_of("t"))],
            lambda: state.threads.get("t"),
            lambda: state.threads.tree("t"),
            lambda: state.runs.list(thread_id="t"),
            lambda: state.spans.list(thread_id="t"),
            lambda: state.messages.conversation("t"),
            lambda: state.events.list(thread_id="t"),
            lambda: state.interrupts.list("t"),
            lambda: state.archive.put(["t"], to="memory://again", idle_for=timedelta(0), dry_run=True),
            lambda: state.threads.fork("t", None, "copy"),
        )
        for read in reads:
            try:
                read()
            except PGStateError as error:
                self.outcomes[f"read: {type(error).__name__}"] += 1
            except (Exception, Hang) as error:
                self._fail(error, where)

    def _forget(self, state: PGState) -> None:
        """Delete all rows of all threads but the victim's, and the row of the archive, which names the manifest."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            names = connection.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'thread_id'"
                " WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
                [self._schema],
            ).fetchall()
            for (name,) in names:
                query = sql.SQL("DELETE FROM {} WHERE thread_id <> 'victim'").format(sql.Identifier(self._schema, name))
                connection.execute(query)
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(self._schema, "archives")))

    def _fail(self, error: BaseException, where: str) -> None:
        at = traceback.extract_tb(error.__traceback__)[-1]
        shown = "".join(traceback.format_exception(error, limit=-10))[-2500:]
        self._add(f"{type(error).__name__} at {at.name}", where, shown)

    def _add(self, kind: str, where: str, shown: str) -> None:
        self.found[kind] += 1
        if self.found[kind] == 1:
            print(f"FOUND {kind}\n  {where}\n{shown}\n", flush=True)  # noqa: T201


def run(dsn: str, schema: str, seed: str, archives: int) -> Archives:
    """Restore forged archives, and return what came of it."""
    made = Archives(dsn, schema)
    # What is imported at the first use is so now.
    made.run("first", min(20, archives))
    guard.install()
    made.run(seed, archives)
    return made
