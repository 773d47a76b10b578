"""The question every chat application opens with: the latest threads of one user, among many."""

from __future__ import annotations

import statistics

import psycopg
from psycopg import sql

from benchmarks.measure import OURS, CaseResult, MismatchError, Plan, quiet, timed
from benchmarks.server import Server
from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import Threads

NAME = "latest"
TITLE = "The latest 20 threads of one user"
_USERS = 1_000
_PAGE = 20

# Rows in random order, so that a user's threads lie on pages of their own.
_FILL = """
INSERT INTO {threads} (thread_id, agent, user_id, tenant_id, title, metadata, created_at, updated_at)
SELECT md5(t::text), 'travel', 'user-' || t %% %(users)s, 'tenant-' || t %% 10, repeat('title ', 8),
    jsonb_build_object('topic', 'topic ' || t %% 100), now() - interval '60 days', now() - random() * interval '60 days'
FROM generate_series(1, %(threads)s::integer) AS t ORDER BY md5(t::text)
"""


def run(server: Server, plan: Plan) -> CaseResult:
    """Each call asks for another user, over one connection, with nothing of it remembered."""
    count = plan.pick(100_000, 20_000)
    calls = plan.pick(200, 50)
    result = CaseResult(NAME, f"{TITLE}, among {count:,}")
    result.notes.append(f"{_USERS:,} users; LangGraph's own saver has no threads to ask for. No state is read.")
    with server.schema(NAME) as schema, psycopg.connect(server.dsn, autocommit=True) as connection:
        PGStateSaver(connection, schema=schema).setup()
        threads = sql.Identifier(schema, "threads")
        connection.execute(sql.SQL(_FILL).format(threads=threads), {"users": _USERS, "threads": count})
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(threads))
        with Database.open(server.dsn, schema=schema, pool=False) as database:
            part = Threads(database, queries(schema))
            for _ in range(10):
                part.list(user_id="user-0")
            for _ in range(plan.rounds):
                users = [f"user-{plan.rng.randrange(_USERS)}" for _ in range(calls)]
                with quiet():
                    first = [timed(part.list, user_id=user, limit=_PAGE) * 1000 for user in users]
                cursors = [(user, part.list(user_id=user, limit=_PAGE // 2).next) for user in users]
                with quiet():
                    later = [timed(part.list, user_id=user, cursor=cursor) * 1000 for user, cursor in cursors]
                for name, times in (("first", first), ("next", later)):
                    page = "first page" if name == "first" else "page after"
                    result.metric(name, f"{page}, median", "ms").add(OURS, statistics.median(times))
                    p95 = statistics.quantiles(times, n=20)[-1]
                    result.metric(f"{name}-p95", f"{page}, 95 of 100 take no longer", "ms").add(OURS, p95)
            _check(part)
    return result


def _check(part: Threads) -> None:
    """Pages hold the user's threads, latest first."""
    first = part.list(user_id="user-7", limit=_PAGE // 2)
    both = [*first.items, *part.list(user_id="user-7", limit=_PAGE // 2, cursor=first.next).items]
    if both != list(part.list(user_id="user-7", limit=_PAGE).items) or {item.user_id for item in both} != {"user-7"}:
        raise MismatchError("latest: two half pages are not a whole one")
