-- condition: is_selected
-- Whether a policy `p` selects a thread `t` that is not archived.
SELECT FROM /*schema*/retention_policies p, /*schema*/threads t WHERE
    (p.agent IS NULL OR t.agent = p.agent) AND (p.tenant_id IS NULL OR t.tenant_id = p.tenant_id)
    AND (p.user_id IS NULL OR t.user_id = p.user_id) AND (p.status IS NULL OR t.status = p.status)
    AND (p.metadata IS NULL OR t.metadata @> p.metadata);

-- condition: is_idle
-- Whether no run of a thread `t` is running or pending.
SELECT FROM /*schema*/threads t WHERE
    NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
    )
    AND NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = t.thread_id)
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/leases l
        WHERE l.thread_id = t.thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
    );

-- condition: is_of_user
-- Whether a namespace belongs to a user. This package puts the user's id after the label `user`. In namespaces of other
-- programs, the id may be any label.
SELECT FROM /*schema*/memories o WHERE CASE WHEN o.namespace[1] IN ('memories', 'notes') THEN EXISTS (
        SELECT 1 FROM unnest(o.namespace) WITH ORDINALITY AS l (label, place)
        WHERE l.label = 'user' AND o.namespace[(l.place + 1::bigint)::integer] = :user_id::text
    ) ELSE :label::text = ANY(o.namespace) END;
