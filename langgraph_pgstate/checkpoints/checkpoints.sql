-- name: put_checkpoint
-- Store a checkpoint, and an entry of the journal unless `entry_id` is null. Affects no row if the thread has no row,
-- or is archived. Fails if the checkpoint exists.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
-- leaves: threads.metadata
WITH required AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/threads WHERE thread_id = :thread_id AND archived_at IS NULL
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required;

-- name: put_checkpoint_segments
-- Store a checkpoint as `put_checkpoint` does, with new segments.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
-- seals: segments.data from new_data by new_starts, new_lengths with segment_id = new_ids
-- leaves: threads.metadata
WITH required AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/threads WHERE thread_id = :thread_id AND archived_at IS NULL
), new_segments AS (
    -- The segments are concatenated, because an array would be sent as text. A single segment is not copied.
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :thread_id, new.segment_id, CASE WHEN new.length = octet_length(:new_data::bytea) THEN :new_data
        ELSE substr(:new_data, new.start, new.length) END
    FROM required CROSS JOIN LATERAL unnest(:new_ids::integer[], :new_starts::integer[], :new_lengths::integer[])
        AS new (segment_id, start, length)
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required;

-- name: put_checkpoint_on_base
-- Store a checkpoint as `put_checkpoint` does. Lock the base, from which the checkpoint inherits values, so that a
-- concurrent prune keeps the base's segments. Affects no row if the base is missing or was written again.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
WITH required AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :base_id::text
        AND revision = :base_revision::bigint
    FOR KEY SHARE
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required;

-- name: put_checkpoint_on_base_segment
-- Lock the base and store a checkpoint as `put_checkpoint_on_base` does, with one new segment.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
-- seals: segments.data from new_data with segment_id = new_id
WITH required AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :base_id::text
        AND revision = :base_revision::bigint
    FOR KEY SHARE
), new_segment AS (
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :thread_id, :new_id::integer, :new_data::bytea FROM required
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required;

-- name: put_checkpoint_on_base_segments
-- Lock the base and store a checkpoint as `put_checkpoint_on_base` does, with several new segments.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
-- seals: segments.data from new_data by new_starts, new_lengths with segment_id = new_ids
WITH required AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :base_id::text
        AND revision = :base_revision::bigint
    FOR KEY SHARE
), new_segments AS (
    -- The segments are concatenated, because an array would be sent as text. A single segment is not copied.
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :thread_id, new.segment_id, CASE WHEN new.length = octet_length(:new_data::bytea) THEN :new_data
        ELSE substr(:new_data, new.start, new.length) END
    FROM required CROSS JOIN LATERAL unnest(:new_ids::integer[], :new_starts::integer[], :new_lengths::integer[])
        AS new (segment_id, start, length)
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required;

-- name: replace_checkpoint
-- Store or replace a checkpoint, with any number of new segments. Lock the base, if any. If `touches` is true, insert
-- or update the thread's row. Affects no row if the thread's row or the base is missing. Fails if the thread is
-- archived.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
-- seals: journal.data from entry
-- seals: segments.data from new_data by new_starts, new_lengths with segment_id = new_ids
-- leaves: threads.metadata
WITH base AS MATERIALIZED (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :base_id::text
        AND revision = :base_revision::bigint
    FOR KEY SHARE
), required AS MATERIALIZED (
    SELECT now() AS at WHERE CASE
        WHEN :base_id IS NOT NULL THEN EXISTS (SELECT 1 FROM base)
        ELSE :touches::boolean OR EXISTS (
            SELECT 1 FROM /*schema*/threads WHERE thread_id = :thread_id AND archived_at IS NULL
        )
    END
), new_segments AS (
    -- The segments are concatenated, because an array would be sent as text. A single segment is not copied.
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :thread_id, new.segment_id, CASE WHEN new.length = octet_length(:new_data::bytea) THEN :new_data
        ELSE substr(:new_data, new.start, new.length) END
    FROM required CROSS JOIN LATERAL unnest(:new_ids::integer[], :new_starts::integer[], :new_lengths::integer[])
        AS new (segment_id, start, length)
), touched AS (
    INSERT INTO /*schema*/threads (thread_id, agent, user_id, created_at, updated_at, tenant_id)
    SELECT :thread_id, :agent::text, :user_id::text, at, at, :tenant_id::text FROM required WHERE :touches
    ON CONFLICT (thread_id) DO UPDATE SET
        agent = coalesce(excluded.agent, threads.agent),
        user_id = coalesce(excluded.user_id, threads.user_id),
        tenant_id = coalesce(excluded.tenant_id, threads.tenant_id),
        updated_at = excluded.updated_at,
        -- If the thread is archived, the cast fails. The error's message contains this text.
        version = CASE WHEN threads.archived_at IS NULL THEN threads.version
            ELSE ('pgstate-guard:archived:' || threads.archive_id || ';')::integer END,
        -- Use UTC, because Citus requires an immutable expression, and the session's time zone may change.
        expires_at = coalesce(
            ((excluded.updated_at AT TIME ZONE 'UTC') + threads.ttl) AT TIME ZONE 'UTC', threads.expires_at
        )
), noted AS (
    INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, created_at, data)
    SELECT :thread_id, :entry_id::text, :run_id::text, at, :entry::bytea FROM required WHERE :entry_id IS NOT NULL
)
INSERT INTO /*schema*/checkpoints AS stored (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, state_version
)
SELECT
    :thread_id, :checkpoint_ns::text, :checkpoint_id::text, :parent_checkpoint_id::text, :run_id::text, :source::text,
    :step::integer, at, :revision::bigint, :segment_ids::integer[], :metadata::jsonb, :state::bytea,
    :state_version::integer
FROM required
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
    parent_checkpoint_id = excluded.parent_checkpoint_id,
    run_id = excluded.run_id,
    source = excluded.source,
    step = excluded.step,
    revision = excluded.revision,
    -- Keep the old segments, because another process may be about to inherit them.
    segment_ids = excluded.segment_ids || stored.segment_ids,
    metadata = excluded.metadata,
    state = excluded.state,
    state_version = excluded.state_version,
    is_copy = excluded.is_copy;

-- name: hold_checkpoints
-- Lock some checkpoints of a namespace against deletion until the transaction ends, and return their revisions.
SELECT checkpoint_id, revision FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
FOR KEY SHARE;

-- name: hold_bases
-- Lock the checkpoints from which a put inherits, until the transaction ends. Fail unless all have the given revisions.
WITH bases AS MATERIALIZED (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
        AND (checkpoint_id, revision) IN (SELECT * FROM unnest(:base_ids::text[], :base_revisions::bigint[]))
    FOR KEY SHARE
)
SELECT ('pgstate-guard:base:' || found.count || ';')::integer FROM (SELECT count(*) AS count FROM bases) AS found
WHERE found.count < cardinality(:base_ids::text[]);

-- name: get_checkpoint
-- Return one checkpoint by id, as rows of these kinds. 0: the checkpoint, and the id of the namespace's newest. 3: like
-- 0, but the checkpoint's parent is missing. 1: a segment. 2: a pending write. If the checkpoint has the revision
-- `known_revision`, return only the segments `missing_ids`.
-- opens: checkpoints.state from data of kind 0, 3
-- opens: checkpoints.metadata from c of kind 0, 3
-- opens: segments.data with segment_id = n of kind 1
-- opens: writes.data with task_id = a, idx = n of kind 2
SELECT
    CASE WHEN parent_checkpoint_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/checkpoints p
        WHERE p.thread_id = :thread_id AND p.checkpoint_ns = :checkpoint_ns
            AND p.checkpoint_id = head.parent_checkpoint_id
    ) THEN 0 ELSE 3 END AS kind,
    (
        SELECT newest.checkpoint_id FROM /*schema*/checkpoints newest
        WHERE newest.thread_id = :thread_id AND newest.checkpoint_ns = :checkpoint_ns
        ORDER BY newest.checkpoint_id DESC LIMIT 1
    ) AS a,
    parent_checkpoint_id AS b, metadata::text AS c, revision AS n, state AS data, segment_ids AS ids, state_version
FROM /*schema*/checkpoints head
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
UNION ALL
SELECT 1, NULL, NULL, NULL, s.segment_id, s.data, NULL, NULL
FROM /*schema*/segments s
WHERE s.thread_id = :thread_id AND s.segment_id = ANY((
    -- Reading the row twice is faster than a common table expression.
    SELECT CASE WHEN revision = :known_revision::bigint THEN :missing_ids::integer[] ELSE segment_ids END
    FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
)::integer[])
UNION ALL
SELECT 2, w.task_id, w.task_path, NULL, w.idx, w.data, NULL, NULL
FROM /*schema*/writes w
WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = :checkpoint_id;

-- name: get_latest_checkpoint
-- Return the newest checkpoint of a namespace, as rows like those of `get_checkpoint`. If the checkpoint has the
-- revision `known_revision`, return only the segments `missing_ids`.
-- opens: checkpoints.state from data with checkpoint_id = a of kind 0, 3
-- opens: checkpoints.metadata from c with checkpoint_id = a of kind 0, 3
-- opens: segments.data with segment_id = n of kind 1
-- opens: writes.data with checkpoint_id = c, task_id = a, idx = n of kind 2
WITH head AS MATERIALIZED (
    SELECT checkpoint_id, parent_checkpoint_id, metadata, state, segment_ids, revision, state_version
    FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    ORDER BY checkpoint_id DESC LIMIT 1
)
SELECT
    CASE WHEN parent_checkpoint_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/checkpoints p
        WHERE p.thread_id = :thread_id AND p.checkpoint_ns = :checkpoint_ns
            AND p.checkpoint_id = head.parent_checkpoint_id
    ) THEN 0 ELSE 3 END AS kind,
    checkpoint_id AS a, parent_checkpoint_id AS b, metadata::text AS c, revision AS n, state AS data,
    segment_ids AS ids, state_version
FROM head
UNION ALL
SELECT 1, NULL, NULL, NULL, s.segment_id, s.data, NULL, NULL
FROM /*schema*/segments s
WHERE s.thread_id = :thread_id AND s.segment_id = ANY((
    SELECT CASE WHEN revision = :known_revision::bigint THEN :missing_ids::integer[] ELSE segment_ids END FROM head
)::integer[])
UNION ALL
-- The id gets the collation that this column has in the SELECTs above. Otherwise the plan would append in two steps.
SELECT 2, w.task_id, w.task_path, w.checkpoint_id COLLATE "default", w.idx, w.data, NULL, NULL
FROM /*schema*/writes w
WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns
    AND w.checkpoint_id = (SELECT checkpoint_id FROM head);

-- name: get_latest_checkpoints
-- Return the rows of `get_latest_checkpoint`, each with its thread, for the root namespaces of several threads. After
-- `most_bytes`, return only a row of kind 4 for each further thread.
-- opens: checkpoints.state from data with checkpoint_id = a, checkpoint_ns = '' of kind 0, 3
-- opens: checkpoints.metadata from c with checkpoint_id = a, checkpoint_ns = '' of kind 0, 3
-- opens: segments.data with segment_id = n of kind 1
-- opens: writes.data with checkpoint_id = c, task_id = a, idx = n, checkpoint_ns = '' of kind 2
WITH newest AS (
    SELECT c.*, g.place FROM unnest(:thread_ids::text[]) WITH ORDINALITY AS g (thread_id, place), LATERAL (
        SELECT n.thread_id, n.checkpoint_id, n.parent_checkpoint_id, n.metadata, n.state, n.segment_ids, n.revision,
            n.state_version
        FROM /*schema*/checkpoints n
        WHERE n.thread_id = g.thread_id AND n.checkpoint_ns = ''
        ORDER BY n.checkpoint_id DESC LIMIT 1
    ) AS c
), measured AS MATERIALIZED (
    SELECT n.*, coalesce(sum(
        octet_length(n.state) + pg_column_size(n.metadata) + (
            SELECT coalesce(sum(octet_length(s.data)), 0) FROM /*schema*/segments s
            WHERE s.thread_id = n.thread_id AND s.segment_id = ANY(n.segment_ids)
        ) + (
            SELECT coalesce(sum(octet_length(w.data)), 0) FROM /*schema*/writes w
            WHERE w.thread_id = n.thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = n.checkpoint_id
        )
    ) OVER (ORDER BY n.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) >= :most_bytes AS is_left
    FROM newest n
), heads AS (
    SELECT * FROM measured WHERE NOT is_left
)
SELECT
    h.thread_id,
    CASE WHEN h.parent_checkpoint_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/checkpoints p
        WHERE p.thread_id = h.thread_id AND p.checkpoint_ns = '' AND p.checkpoint_id = h.parent_checkpoint_id
    ) THEN 0 ELSE 3 END AS kind,
    h.checkpoint_id AS a, h.parent_checkpoint_id AS b, h.metadata::text AS c, h.revision AS n, h.state AS data,
    h.segment_ids AS ids, h.state_version
FROM heads h
UNION ALL
SELECT h.thread_id, 1, NULL, NULL, NULL, s.segment_id, s.data, NULL, NULL
FROM heads h JOIN /*schema*/segments s ON s.thread_id = h.thread_id AND s.segment_id = ANY(h.segment_ids)
UNION ALL
SELECT h.thread_id, 2, w.task_id, w.task_path, w.checkpoint_id COLLATE "default", w.idx, w.data, NULL, NULL
FROM heads h JOIN /*schema*/writes w ON w.thread_id = h.thread_id AND w.checkpoint_ns = ''
    AND w.checkpoint_id = h.checkpoint_id
UNION ALL
SELECT m.thread_id, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM measured m WHERE m.is_left;

-- name: get_values
-- Return the ids of some checkpoints of a namespace that exist, some segments of the thread, and the checkpoints'
-- pending writes, all from one snapshot.
-- opens: segments.data with segment_id = n of kind 1
-- opens: writes.data with checkpoint_id = a, task_id = b, idx = n of kind 2
SELECT 0 AS kind, c.checkpoint_id AS a, NULL AS b, NULL AS c, NULL::integer AS n, NULL::bytea AS data
FROM /*schema*/checkpoints c
WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = :checkpoint_ns::text
    AND c.checkpoint_id = ANY(:checkpoint_ids::text[])
UNION ALL
SELECT 1, NULL, NULL, NULL, s.segment_id, s.data
FROM /*schema*/segments s
WHERE s.thread_id = :thread_id AND s.segment_id = ANY(:segment_ids::integer[])
UNION ALL
SELECT 2, w.checkpoint_id, w.task_id, w.task_path, w.idx, w.data
FROM /*schema*/writes w
WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = ANY(:checkpoint_ids);

-- name: measure_values
-- Return the bytes of each checkpoint of a list, by position in the list: the state, the pending writes, and the
-- segments that no earlier checkpoint of the list has.
SELECT place, sum(bytes)::bigint FROM (
    SELECT f.place, octet_length(s.data) AS bytes
    FROM unnest(:segment_ids::integer[], :segment_places::integer[]) AS f (segment_id, place)
        JOIN /*schema*/segments s ON s.thread_id = :thread_id::text AND s.segment_id = f.segment_id
    UNION ALL
    SELECT f.place, octet_length(c.state)
    FROM unnest(:checkpoint_ids::text[], :checkpoint_places::integer[]) AS f (checkpoint_id, place)
        JOIN /*schema*/checkpoints c ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns::text
            AND c.checkpoint_id = f.checkpoint_id
    UNION ALL
    SELECT f.place, octet_length(w.data)
    FROM unnest(:checkpoint_ids, :checkpoint_places) AS f (checkpoint_id, place)
        JOIN /*schema*/writes w ON w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns
            AND w.checkpoint_id = f.checkpoint_id
) AS value
GROUP BY place;

-- name: get_newest
-- Return the id of a namespace's newest checkpoint.
SELECT checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text
ORDER BY checkpoint_id DESC LIMIT 1;

-- name: get_bare_checkpoint
-- Return a checkpoint of a namespace, or the newest, without segments and pending writes.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
SELECT checkpoint_id, parent_checkpoint_id, metadata::text, state, segment_ids, revision, state_version
FROM /*schema*/checkpoints
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text
    AND checkpoint_id = coalesce(:checkpoint_id::text, (
        SELECT n.checkpoint_id FROM /*schema*/checkpoints n
        WHERE n.thread_id = :thread_id AND n.checkpoint_ns = :checkpoint_ns
        ORDER BY n.checkpoint_id DESC LIMIT 1
    ));

-- name: list_in_namespace
-- Return a page of one namespace's checkpoints, newest first, below a cursor. States of more than `state_bytes` are
-- left out.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
-- matches: checkpoints.metadata
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata::text, created_at,
    CASE WHEN octet_length(state) <= :state_bytes::integer THEN state END AS state, segment_ids, state_version,
    (
        SELECT p.checkpoint_id FROM /*schema*/checkpoints p
        WHERE p.thread_id = :thread_id AND p.checkpoint_ns = :checkpoint_ns
            AND p.checkpoint_id = c.parent_checkpoint_id
    ) AS present_parent_id
FROM /*schema*/checkpoints c
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    AND checkpoint_id < :cursor_id::text
    AND (:before_id::text IS NULL OR checkpoint_id < :before_id)
    AND (:checkpoint_id::text IS NULL OR checkpoint_id = :checkpoint_id)
    AND (:source::text IS NULL OR source = :source)
    AND (:step::integer IS NULL OR step = :step)
    AND (:run_id::text IS NULL OR run_id = :run_id)
    AND (:metadata::jsonb IS NULL OR metadata @> :metadata)
ORDER BY checkpoint_id DESC
LIMIT :page_size;

-- name: list_in_thread
-- Return a page of one thread's checkpoints of all namespaces, newest first, below a cursor.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
-- matches: checkpoints.metadata
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata::text, created_at,
    CASE WHEN octet_length(state) <= :state_bytes::integer THEN state END AS state, segment_ids, state_version,
    (
        SELECT p.checkpoint_id FROM /*schema*/checkpoints p
        WHERE p.thread_id = :thread_id AND p.checkpoint_ns = c.checkpoint_ns
            AND p.checkpoint_id = c.parent_checkpoint_id
    ) AS present_parent_id
FROM /*schema*/checkpoints c
WHERE thread_id = :thread_id
    AND (checkpoint_id, checkpoint_ns) < (:cursor_id::text, :cursor_ns::text)
    AND (:before_id::text IS NULL OR checkpoint_id < :before_id)
    AND (:checkpoint_id::text IS NULL OR checkpoint_id = :checkpoint_id)
    AND (:source::text IS NULL OR source = :source)
    AND (:step::integer IS NULL OR step = :step)
    AND (:run_id::text IS NULL OR run_id = :run_id)
    AND (:metadata::jsonb IS NULL OR metadata @> :metadata)
ORDER BY checkpoint_id DESC, checkpoint_ns DESC
LIMIT :page_size;

-- name: list_everywhere
-- Return a page of at most 50 of all threads' checkpoints, newest first, below a cursor. The planner uses the index
-- that has the collation "POSIX" only if the inner query names this collation and has a limit. The collation does not
-- change the order. Copies of a thread share ids, so checkpoints of one id are ordered by thread.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
-- matches: checkpoints.metadata
SELECT * FROM (
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata::text, created_at,
        CASE WHEN octet_length(state) <= :state_bytes::integer THEN state END AS state, segment_ids, state_version,
        (
            SELECT p.checkpoint_id FROM /*schema*/checkpoints p
            WHERE p.thread_id = c.thread_id AND p.checkpoint_ns = c.checkpoint_ns
                AND p.checkpoint_id = c.parent_checkpoint_id
        ) AS present_parent_id
    FROM /*schema*/checkpoints c
    WHERE checkpoint_id COLLATE "POSIX" <= :cursor_id::text
        AND (checkpoint_id, thread_id, checkpoint_ns) < (:cursor_id, :cursor_thread::text, :cursor_ns::text)
        AND (:before_id::text IS NULL OR checkpoint_id < :before_id)
        AND (:source::text IS NULL OR source = :source)
        AND (:step::integer IS NULL OR step = :step)
        AND (:run_id::text IS NULL OR run_id = :run_id)
        AND (:metadata::jsonb IS NULL OR metadata @> :metadata)
    ORDER BY checkpoint_id COLLATE "POSIX" DESC
    FETCH FIRST 50 ROWS WITH TIES
) AS page
ORDER BY checkpoint_id COLLATE "POSIX" DESC, thread_id DESC, checkpoint_ns DESC
LIMIT :page_size;

-- name: list_of_run
-- Return a page of one run's checkpoints in any thread, newest first, below a cursor.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
-- matches: checkpoints.metadata
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata::text, created_at,
    CASE WHEN octet_length(state) <= :state_bytes::integer THEN state END AS state, segment_ids, state_version,
    (
        SELECT p.checkpoint_id FROM /*schema*/checkpoints p
        WHERE p.thread_id = c.thread_id AND p.checkpoint_ns = c.checkpoint_ns
            AND p.checkpoint_id = c.parent_checkpoint_id
    ) AS present_parent_id
FROM /*schema*/checkpoints c
WHERE run_id = :run_id
    AND (checkpoint_id, thread_id, checkpoint_ns) < (:cursor_id::text, :cursor_thread::text, :cursor_ns::text)
    AND (:before_id::text IS NULL OR checkpoint_id < :before_id)
    AND (:source::text IS NULL OR source = :source)
    AND (:step::integer IS NULL OR step = :step)
    AND (:metadata::jsonb IS NULL OR metadata @> :metadata)
ORDER BY checkpoint_id DESC, thread_id DESC, checkpoint_ns DESC
LIMIT :page_size;

-- name: get_lineage
-- Return the ancestors of a checkpoint, nearest first, with their state but no segments; at most `page_size` of them.
-- opens: checkpoints.state
WITH RECURSIVE lineage AS (
    SELECT checkpoint_id, parent_checkpoint_id, state, segment_ids, state_version, 0 AS depth
    FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.state, c.segment_ids, c.state_version, l.depth + 1
    FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = l.parent_checkpoint_id
    WHERE l.depth < :page_size - 1
)
SELECT checkpoint_id, parent_checkpoint_id, state, segment_ids, state_version FROM lineage ORDER BY depth;

-- name: get_states
-- Return the state, without segments, of some checkpoints of a namespace.
-- opens: checkpoints.state
SELECT checkpoint_id, state, segment_ids, revision FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]);

-- name: scan_states
-- Return a page of a namespace's states, newest first, below a cursor. `state_version` may restrict the page.
-- opens: checkpoints.state
SELECT checkpoint_id, state, segment_ids, revision FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    AND checkpoint_id < :cursor_id::text
    AND (:state_version::integer IS NULL OR coalesce(state_version, 1) = :state_version)
ORDER BY checkpoint_id DESC
LIMIT :page_size;

-- name: get_outline
-- Return a thread's checkpoints without their state, oldest first.
-- leaves: checkpoints.metadata
SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.metadata::text,
    c.created_at < now() - :older_than::interval AS is_old,
    EXISTS (
        SELECT 1 FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    ) AS has_writes,
    EXISTS (
        SELECT 1 FROM /*schema*/labels l
        WHERE l.thread_id = :thread_id AND l.checkpoint_ns = c.checkpoint_ns AND l.checkpoint_id = c.checkpoint_id
    ) AS is_labelled,
    c.next_checkpoint_id IS NOT NULL AS has_moved_on
FROM /*schema*/checkpoints c
WHERE c.thread_id = :thread_id
ORDER BY c.checkpoint_ns, c.checkpoint_id;

-- name: lock_checkpoints
-- Lock some checkpoints of a thread until the transaction ends. Waits for puts that inherit from these checkpoints.
SELECT 1 FROM /*schema*/checkpoints c
WHERE c.thread_id = :thread_id::text AND (c.checkpoint_ns, c.checkpoint_id) IN (
    SELECT * FROM unnest(:namespaces::text[], :checkpoint_ids::text[])
)
ORDER BY c.checkpoint_ns, c.checkpoint_id
FOR UPDATE;

-- name: delete_checkpoints
-- Delete some checkpoints of a namespace with their pending writes, and return the number of each and their bytes.
WITH gone AS (
    DELETE FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
    RETURNING octet_length(state) AS bytes
), gone_writes AS (
    DELETE FROM /*schema*/writes
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
    RETURNING octet_length(data) AS bytes
), gone_answers AS (
    DELETE FROM /*schema*/answers
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM gone_writes),
    (SELECT coalesce(sum(bytes), 0)::bigint FROM gone) + (SELECT coalesce(sum(bytes), 0)::bigint FROM gone_writes);

-- name: note_next_checkpoints
-- Store in some checkpoints that they had children, before all of the children are deleted.
UPDATE /*schema*/checkpoints c SET next_checkpoint_id = moved.next_checkpoint_id
FROM unnest(:checkpoint_ids::text[], :next_ids::text[]) AS moved (checkpoint_id, next_checkpoint_id)
WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = moved.checkpoint_id
    AND c.next_checkpoint_id IS NULL;

-- name: count_checkpoints
-- Return what `delete_checkpoints` would delete.
SELECT
    (SELECT count(*) FROM /*schema*/checkpoints WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
        AND checkpoint_id = ANY(:checkpoint_ids::text[])),
    (SELECT count(*) FROM /*schema*/writes WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
        AND checkpoint_id = ANY(:checkpoint_ids::text[])),
    (SELECT coalesce(sum(octet_length(state)), 0)::bigint FROM /*schema*/checkpoints WHERE thread_id = :thread_id
        AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]))
    + (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/writes WHERE thread_id = :thread_id
        AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]));

-- name: find_runs
-- Return the threads in which some runs have checkpoints, writes, rows of `runs`, or journal entries of their own.
-- Copies of checkpoints and writes do not count.
SELECT thread_id FROM /*schema*/checkpoints WHERE run_id = ANY(:run_ids::text[]) AND is_copy IS NOT TRUE
UNION
SELECT thread_id FROM /*schema*/writes WHERE run_id = ANY(:run_ids::text[]) AND is_copy IS NOT TRUE
UNION
SELECT thread_id FROM /*schema*/runs WHERE run_id = ANY(:run_ids::text[])
UNION
SELECT thread_id FROM /*schema*/journal WHERE run_id = ANY(:run_ids::text[]) AND is_alone;

-- name: find_run_checkpoints
-- Return the checkpoints of the root namespace that some runs made.
SELECT checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = '' AND run_id = ANY(:run_ids::text[]) AND is_copy IS NOT TRUE;

-- name: delete_runs
-- Delete some runs from a thread: their checkpoints, the messages first stored with these checkpoints, the writes for
-- these checkpoints, the runs' other writes, and the runs' records. Tool executions, and rows copied from another
-- thread, are kept.
WITH gone AS (
    DELETE FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND run_id = ANY(:run_ids::text[]) AND is_copy IS NOT TRUE
    RETURNING checkpoint_ns, checkpoint_id
), gone_answers AS (
    DELETE FROM /*schema*/answers a
    WHERE a.thread_id = :thread_id AND (a.checkpoint_ns, a.checkpoint_id) IN (SELECT * FROM gone)
), gone_messages AS (
    DELETE FROM /*schema*/messages m
    WHERE m.thread_id = :thread_id AND (
        (m.checkpoint_ns, m.checkpoint_id) IN (SELECT * FROM gone)
        -- In the root namespace, messages stored with other checkpoints are kept, because a later run's checkpoint may
        -- contain them.
        OR m.run_id = ANY(:run_ids::text[]) AND m.checkpoint_ns <> '' AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints c
            WHERE c.thread_id = :thread_id AND c.checkpoint_ns = m.checkpoint_ns
                AND c.checkpoint_id = m.checkpoint_id AND c.is_copy
        )
    )
), gone_projection AS (
    DELETE FROM /*schema*/projections p
    WHERE p.thread_id = :thread_id AND p.checkpoint_id IN (SELECT checkpoint_id FROM gone)
), gone_runs AS (
    DELETE FROM /*schema*/runs WHERE thread_id = :thread_id AND run_id = ANY(:run_ids::text[])
), gone_spans AS (
    DELETE FROM /*schema*/spans WHERE thread_id = :thread_id AND run_id = ANY(:run_ids::text[])
), gone_exports AS (
    DELETE FROM /*schema*/span_exports WHERE thread_id = :thread_id AND run_id = ANY(:run_ids::text[])
), gone_events AS (
    DELETE FROM /*schema*/events WHERE thread_id = :thread_id AND run_id = ANY(:run_ids::text[])
), gone_labels AS (
    DELETE FROM /*schema*/labels l
    WHERE l.thread_id = :thread_id AND (l.checkpoint_ns, l.checkpoint_id) IN (SELECT * FROM gone)
)
DELETE FROM /*schema*/writes w
WHERE w.thread_id = :thread_id
    AND (
        w.run_id = ANY(:run_ids::text[]) AND w.is_copy IS NOT TRUE
        OR (w.checkpoint_ns, w.checkpoint_id) IN (SELECT * FROM gone)
    );
