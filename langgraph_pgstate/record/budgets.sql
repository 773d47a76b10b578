-- name: put_budget
-- Store the budget of a tenant, a user, an agent or a key.
INSERT INTO /*schema*/budgets (scope, name, amount) VALUES (:scope::text, :name::text, :amount::text::numeric)
ON CONFLICT (scope, name) DO UPDATE SET amount = excluded.amount;

-- name: delete_budget
-- Delete a budget.
DELETE FROM /*schema*/budgets WHERE scope = :scope::text AND name = :name::text;

-- name: list_budgets
-- Return all budgets.
SELECT scope, name, amount FROM /*schema*/budgets ORDER BY scope, name;

-- name: read_spending
-- Return the budgets of some owners of runs, with the recorded cost of today's model calls (UTC), including deleted
-- calls but not the given spans. The first row belongs to no budget, and says whether there are any budgets, and when
-- the day began.
WITH day AS MATERIALIZED (
    SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS began_at
), ruled AS MATERIALIZED (
    SELECT a.scope, a.name, b.amount
    FROM unnest(:scopes::text[], :names::text[]) AS a (scope, name) CROSS JOIN LATERAL (
        SELECT o.amount FROM /*schema*/budgets o WHERE o.scope = a.scope AND o.name IN (a.name, '*')
        ORDER BY o.name = '*' LIMIT 1
    ) AS b
), spent AS MATERIALIZED (
    SELECT r.tenant_id, r.user_id, r.agent, r.key, sum(s.cost) AS cost
    FROM /*schema*/spans s JOIN /*schema*/runs r ON r.thread_id = s.thread_id AND r.run_id = s.run_id
    WHERE EXISTS (SELECT 1 FROM ruled)
        AND s.kind = 'llm' AND s.started_at >= (SELECT d.began_at FROM day d) AND s.cost > 0::numeric
        AND s.span_id <> ALL(:span_ids::text[])
    GROUP BY r.tenant_id, r.user_id, r.agent, r.key
    UNION ALL
    SELECT c.tenant_id, c.user_id, c.agent, c.key, sum(c.cost)
    FROM /*schema*/deleted_costs c
    WHERE EXISTS (SELECT 1 FROM ruled)
        AND c.started_at >= (SELECT d.began_at FROM day d) AND c.span_id <> ALL(:span_ids)
    GROUP BY c.tenant_id, c.user_id, c.agent, c.key
)
SELECT NULL::text, NULL::text, NULL::numeric, NULL::numeric, EXISTS (SELECT 1 FROM /*schema*/budgets),
    extract(epoch FROM d.began_at)::double precision
FROM day d
UNION ALL
SELECT u.scope, u.name, u.amount, coalesce((
    SELECT sum(t.cost) FROM spent t
    WHERE u.name = CASE u.scope
        WHEN 'tenant' THEN t.tenant_id WHEN 'user' THEN t.user_id WHEN 'agent' THEN t.agent ELSE t.key END
), 0), true, NULL
FROM ruled u;

-- name: has_budgets
-- Return whether there are any budgets.
SELECT EXISTS (SELECT 1 FROM /*schema*/budgets);

-- name: keep_costs
-- Store today's costs (UTC) of model calls of a thread, or of some of its runs, before the spans are deleted. Another
-- statement deletes the spans, because Citus can distribute spans by thread, but not `deleted_costs`.
WITH today AS MATERIALIZED (
    SELECT s.started_at, s.span_id, r.tenant_id, r.user_id, r.agent, r.key, s.cost
    FROM /*schema*/spans s JOIN /*schema*/runs r ON r.thread_id = s.thread_id AND r.run_id = s.run_id
    WHERE s.thread_id = :thread_id::text AND r.thread_id = :thread_id
        AND (:run_ids::text[] IS NULL OR s.run_id = ANY(:run_ids)) AND s.kind = 'llm' AND s.cost > 0::numeric
        AND s.started_at >= date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
)
INSERT INTO /*schema*/deleted_costs (started_at, span_id, tenant_id, user_id, agent, key, cost)
SELECT t.* FROM today t
ON CONFLICT (started_at, span_id) DO NOTHING;

-- name: sweep_costs
-- Delete the costs of deleted model calls that began before today (UTC).
DELETE FROM /*schema*/deleted_costs
WHERE deleted_costs.started_at < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
