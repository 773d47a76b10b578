"""Faults while agents run, in a short form of `make chaos`; and faults in what is stored, each of which is found."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from chaos.agents import Profile
from chaos.injector import Epoch
from chaos.journal import Journal, read
from chaos.queue.storm import QueueStorm, Thousand
from chaos.queue.verifier import Verifier as QueueVerifier
from chaos.verifier import Verifier, check_leases
from chaos.world import open_world
from psycopg.conninfo import make_conninfo

from langgraph_pgstate import PGStateSaver

_SEED = "planted"
_SCHEMA = "chaos_planted"


def run_epoch(seed: str, faults: int, kind: type[Any] = Epoch) -> Any:
    """One epoch on a server of its own; what was found is in it."""
    # PostgreSQL runs as another user, who may not enter pytest's own directories.
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        with open_world(directory) as world:
            epoch = kind(world, directory / "epoch", seed)
            epoch.run(faults)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return epoch


def told(epoch: Any) -> str:
    """The findings, with what the journal has on their threads."""
    assert epoch.verifier is not None
    lines = [f"{one.kind} on {one.thread}: {one.text}" for one in epoch.findings]
    return "\n".join([*lines, *(epoch.verifier.excerpt(epoch.findings[0]) if epoch.findings else ())])


@pytest.mark.slow
@pytest.mark.once
def test_nothing_is_lost_in_a_storm() -> None:
    epoch = run_epoch("suite", 36)
    assert not epoch.findings, told(epoch)
    assert epoch.counts.total() > 24


@pytest.mark.slow
@pytest.mark.once
def test_every_run_of_the_queue_ends_in_a_storm() -> None:
    epoch = run_epoch("suite", 24, QueueStorm)
    assert not epoch.findings, told(epoch)
    assert epoch.counts.total() > 16


@pytest.mark.long
@pytest.mark.parametrize("kind", [Epoch, QueueStorm])
@pytest.mark.parametrize("number", range(4))
def test_nothing_is_lost_in_a_long_storm(number: int, kind: type[Any]) -> None:
    epoch = run_epoch(f"long.{number}", 300, kind)
    assert not epoch.findings, told(epoch)


def calm_world(dsn: str) -> Any:
    """A server without a proxy, a disk of its own, tenants and encryption."""
    disk = SimpleNamespace(prepare=lambda schema: None)
    return SimpleNamespace(direct=dsn, dsn=dsn, calm=dsn, judge=dsn, tenant=None, is_encrypted=False, disk=disk)


def run_in_calm(dsn: str, directory: Path) -> None:
    """An epoch without faults; the tables stay, and one of the threads is deleted at last."""
    world = calm_world(dsn)
    without = ("cancel", "clock", "point")
    Epoch(world, directory, _SEED, without=without, gap=1.0, threads=4).run(0, calm=30)
    with psycopg.connect(dsn, autocommit=True) as connection:
        lines = read(directory)
        done = {line["id"] for line in lines if line["what"] == "done"}
        # An operation that the epoch's end has cut off may have come later, for all that is known.
        cut = [line for line in lines if line["what"] == "op" and line["id"] not in done]
        taken = {thread for line in cut for thread in (line["thread"], *line["args"])}
        journal = Journal(directory, "operator0.9")
        query = f"SELECT thread_id FROM {_SCHEMA}.messages GROUP BY 1 ORDER BY count(*)"
        thread = next(row[0] for row in connection.execute(query.encode()) if row[0] not in taken)
        journal.note("op", op="delete", id="last", thread=thread, args=[thread])
        PGStateSaver(connection, schema=_SCHEMA).delete_thread(thread)
        journal.note("done", op="delete", id="last")


def verified(connection: psycopg.Connection, directory: Path) -> set[str]:
    """The kinds of what the verifier finds."""
    found = [*check_leases(connection, _SCHEMA), *Verifier(connection, _SCHEMA, _SEED, directory).verify()]
    return {one.kind for one in found}


# Of leaves, which nothing else refers to, those that no prune may have taken.
_NEWEST = "(SELECT thread_id, max(checkpoint_id) AS checkpoint_id FROM checkpoints WHERE checkpoint_ns = '' GROUP BY 1)"
# A race of two runs is forgiven a DeltaChannel.
_PLAIN = [f"{_SEED}-{number}" for number in range(4) if not Profile.of(_SEED, f"{_SEED}-{number}").is_delta]
_LONGEST = f"""
    (SELECT thread_id FROM messages WHERE split_part(thread_id, '~', 1) = ANY('{{{",".join(_PLAIN)}}}')
    GROUP BY 1 ORDER BY count(*) DESC LIMIT 1)
"""
PLANTED = {
    "checkpoint lost": f"DELETE FROM checkpoints c USING {_NEWEST} AS n WHERE c.checkpoint_id = n.checkpoint_id",
    "check": "UPDATE segments SET data = set_byte(data, length(data) - 1, get_byte(data, length(data) - 1) # 255)",
    "parent differs": """
        UPDATE checkpoints c SET parent_checkpoint_id = p.parent_checkpoint_id FROM checkpoints p
        WHERE (p.thread_id, p.checkpoint_ns, p.checkpoint_id)
            = (c.thread_id, c.checkpoint_ns, c.parent_checkpoint_id)
    """,
    "checkpoint differs": """
        UPDATE checkpoints c SET state = p.state, segment_ids = p.segment_ids FROM checkpoints p
        WHERE (p.thread_id, p.checkpoint_ns, p.checkpoint_id)
            = (c.thread_id, c.checkpoint_ns, c.parent_checkpoint_id)
    """,
    "writes lost": "DELETE FROM writes",
    "conversation differs": f"DELETE FROM messages WHERE thread_id = {_LONGEST} AND position = 1",
    "conversation differs, text": f"""
        UPDATE messages SET content = 'something else' WHERE thread_id = {_LONGEST} AND position = 1
    """,
    "conversation differs, order": f"UPDATE messages SET position = 0 WHERE thread_id = {_LONGEST}",
    "run differs": "UPDATE runs SET status = 'error' WHERE status = 'success'",
    "run missing": "DELETE FROM runs",
    "run goes on": "UPDATE runs SET status = 'running', holder_id = NULL, alive_until = now() + interval '1 day'",
    "effect missing": """
        INSERT INTO tool_executions (thread_id, idempotency_key, tool, status, arguments)
        SELECT thread_id, 'never done', 'pay', 'success', '{}' FROM threads LIMIT 1
    """,
    "booking differs": """
        INSERT INTO tool_executions (thread_id, idempotency_key, tool, status, arguments)
        SELECT thread_id, 'never booked', 'book', 'success', '{}' FROM threads LIMIT 1
    """,
    "orphan segments": "INSERT INTO segments SELECT thread_id, max(segment_id) + 1000, '' FROM segments GROUP BY 1",
    "orphan labels": """
        INSERT INTO labels SELECT thread_id, '', 'nowhere', 'here' FROM checkpoints GROUP BY 1 LIMIT 1
    """,
    "order of ids": f"""
        UPDATE checkpoints c SET parent_checkpoint_id = 'later' FROM {_NEWEST} AS n
        WHERE c.checkpoint_id = n.checkpoint_id
    """,
    "lease kept": """
        INSERT INTO leases (thread_id, holder_id, fencing_token, expires_at)
        VALUES ('new', 'me', 1, now() + interval '1 day')
    """,
}


def plant(connection: psycopg.Connection, statement: str) -> None:
    """Change what is stored."""
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path = {_SCHEMA}".encode())
        assert connection.execute(statement.encode()).rowcount > 0, statement


@pytest.mark.slow
@pytest.mark.once
def test_every_planted_fault_is_found(dsn: str, tmp_path: Path) -> None:
    directory = tmp_path / "epoch"
    missed = []
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE calm")
        run_in_calm(make_conninfo(dsn, dbname="calm"), directory)
        lines = [line for line in read(directory) if line["what"] in ("ack", "op")]
        deleted = next(line["thread"] for line in lines if line["id"] == "last")
        gone = next(line for line in lines if line["what"] == "ack" and line["thread"] == deleted and not line["ns"])
        planted = {"": "SELECT 1", **PLANTED}
        for table, kind in (("checkpoints", "deletion undone"), ("messages", "deletion incomplete")):
            planted[kind] = revival(admin, table, {"thread_id": deleted, "checkpoint_id": gone["id"]})
        for kind, statement in planted.items():
            admin.execute("DROP DATABASE IF EXISTS planted")
            admin.execute("CREATE DATABASE planted TEMPLATE calm STRATEGY file_copy")
            with psycopg.connect(make_conninfo(dsn, dbname="planted"), autocommit=True) as connection:
                plant(connection, statement)
                found = verified(connection, directory)
            if kind.partition(",")[0] not in (found or {""}):
                missed.append(f"{kind!r} is not among {found}")
        with psycopg.connect(make_conninfo(dsn, dbname="calm"), autocommit=True) as connection:
            once = ('"pay"', '"charge"', '"mail"', '"plain"')
            files = ((file, file.read_text()) for file in (directory / "outside").iterdir())
            file, text = next((file, text) for file, text in files if any(tool in text for tool in once))
            file.write_text(text * 2)
            assert "effect repeated" in verified(connection, directory)
        admin.execute("DROP DATABASE planted")
        admin.execute("DROP DATABASE calm")
    assert not missed


def revival(admin: psycopg.Connection, table: str, changed: dict[str, str]) -> str:
    """The statement that copies some row of a table, changed."""
    with psycopg.connect(make_conninfo(admin.info.dsn, dbname="calm")) as connection:
        query = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        names = [row[0] for row in connection.execute(query, [_SCHEMA, table])]
    values = [f"'{changed[name]}'" if name in changed else name for name in names]
    # A checkpoint that needs no segments can be read in any thread.
    order = "ORDER BY cardinality(segment_ids)" if "segment_ids" in names else ""
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table} {order} LIMIT 1"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_runs_end_while_a_worker_is_killed_every_second() -> None:
    epoch = run_epoch("thousand", 0, Thousand)
    assert not epoch.findings, told(epoch)
    assert epoch.verifier.compared["runs"] == 1000
    assert {status for _, status, _ in epoch.verifier._runs.values()} == {"success"}


_OF_QUEUE = "queue_planted"
# A run that succeeded on a thread of which nothing was rolled back.
_SUCCESS = "current_setting('chaos.run')"
PLANTED_IN_QUEUE = {
    "run not ended": f"UPDATE runs SET status = 'running' WHERE run_id = {_SUCCESS}",
    "run in the queue": """
        INSERT INTO queue (thread_id, run_id, queue, graph)
        SELECT thread_id, 'new', 'default', 'agent' FROM threads LIMIT 1
    """,
    "run lost": f"DELETE FROM runs WHERE run_id = {_SUCCESS}",
    "run is back": f"UPDATE runs SET queue = NULL WHERE run_id = {_SUCCESS}",
    "rollback incomplete": "DELETE FROM runs WHERE status = 'success'",
    "told otherwise": "UPDATE runs SET status = 'timeout' WHERE status = 'success'",
    "run failed": "UPDATE runs SET status = 'error', error_type = 'builtins.KeyError' WHERE status = 'success'",
    "supersteps lost": """
        DELETE FROM checkpoints c
        USING (SELECT thread_id, max(checkpoint_id) AS checkpoint_id FROM checkpoints GROUP BY 1) n
        WHERE (c.thread_id, c.checkpoint_id) = (n.thread_id, n.checkpoint_id)
    """,
    "order lost": "TRUNCATE public.orders; UPDATE threads SET title = ''",
    "thread busy": "UPDATE threads SET status = 'busy'",
    "request kept": f"""
        INSERT INTO run_requests (thread_id, run_id, options, data)
        SELECT thread_id, run_id, '{{}}', '' FROM runs WHERE run_id = {_SUCCESS}
    """,
    "check": "UPDATE segments SET data = set_byte(data, length(data) - 1, get_byte(data, length(data) - 1) # 255)",
}


def kept_of(lines: list[Any]) -> str:
    """A run that succeeded, on a thread of which nothing was rolled back."""
    rolled_back = {line["thread"] for line in lines if "rollback" in (line.get("strategy"), line.get("action"))}
    ended = [line for line in lines if line["what"] == "told" and line["told"] == "end"]
    return str(next(line["run"] for line in ended if line["thread"] not in rolled_back))


def noted_of(lines: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Lines that make a journal tell of a fault, by its kind."""
    ack = next(line for line in lines if line["what"] == "ack" and not line["ns"])
    tried = next(line for line in lines if line["what"] == "try" and line["id"] == ack["id"])
    later = max(line["at"] for line in lines) + 1
    acked = {
        (line["run"], line["step"]): line
        for line in lines
        if line["what"] == "try" and any(one["what"] == "ack" and one["id"] == line["id"] for one in lines)
    }
    step = next(line for line in lines if line["what"] == "step" and (line["run"], line["step"]) in acked)
    succeeded = next(line for line in lines if line["what"] == "told" and line["told"] == "end")
    of_run = {"run": succeeded["run"], "thread": succeeded["thread"]}
    return {
        "superstep repeated": [{**step, "at": later}],
        "fence passed": [{**tried, "id": "late", "at": later}, {**ack, "id": "late", "at": later + 1}],
        "rollback forgotten": [{**of_run, "what": "cancelled", "action": "rollback", "status": "running"}],
        "run made": [{**of_run, "what": "refused"}],
        "error KeyError": [
            {"what": "failed", "job": "look", "thread": "", "error": "KeyError", "text": "", "frames": []}
        ],
    }


@pytest.mark.slow
@pytest.mark.once
def test_every_planted_fault_of_the_queue_is_found(dsn: str, tmp_path: Path) -> None:
    directory, missed = tmp_path / "storm", []

    def look(kind: str, connection: psycopg.Connection, place: Path) -> None:
        found = {one.kind for one in QueueVerifier(connection, _OF_QUEUE, place, None).verify()}
        if kind not in (found or {""}):
            missed.append(f"{kind!r} is not among {found}")

    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE calm_queue")
        calm = make_conninfo(dsn, dbname="calm_queue")
        world = calm_world(calm)
        storm = QueueStorm(world, directory, _SEED, without=("clock", "point"), gap=1.0)
        storm.run(0, calm=60)
        assert not storm.findings, told(storm)
        kept = kept_of(read(directory))
        for kind, statement in PLANTED_IN_QUEUE.items():
            admin.execute("DROP DATABASE IF EXISTS planted_queue")
            admin.execute("CREATE DATABASE planted_queue TEMPLATE calm_queue STRATEGY file_copy")
            with psycopg.connect(make_conninfo(dsn, dbname="planted_queue"), autocommit=True) as connection:
                with connection.transaction():
                    connection.execute(f"SET LOCAL search_path = {_OF_QUEUE}".encode())
                    connection.execute("SELECT set_config('chaos.run', %s, true)", [kept])
                    connection.execute(statement.encode())
                look(kind, connection, directory)
        with psycopg.connect(calm, autocommit=True) as connection:
            for kind, noted in noted_of(read(directory)).items():
                journal = Journal(directory, "planted")
                for line in noted:
                    journal.note(**{"by": "planted", **line})
                look(kind, connection, directory)
                (directory / "planted.jsonl").unlink()
            file = next((directory / "outside").iterdir())
            text = file.read_text()
            file.write_text(text * 2)
            look("effect repeated", connection, directory)
            file.unlink()
            look("effect missing", connection, directory)
            file.write_text(text)
            row = "INSERT INTO {}.queue (thread_id, run_id, queue, graph, status, is_ready, number)"
            connection.execute(f"{row} VALUES ('t', 'r', '', '', 'running', true, 0)".format(_OF_QUEUE).encode())
            storm._lost_since["r"] = storm._disturbed_at = float("-inf")
            # As if a runner could recover it.
            storm._able_since = {"runner": float("-inf")}
            storm._note_able = lambda: None  # type: ignore[method-assign]
            storm._look()
            assert [one.kind for one in storm.findings] == ["run without a lease"]
        admin.execute("DROP DATABASE planted_queue")
        admin.execute("DROP DATABASE calm_queue")
    assert not missed
