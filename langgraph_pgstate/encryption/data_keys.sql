-- name: get_data_keys
-- Return some data keys by their ids.
SELECT key_id, scope, master_id, wrapped, is_of_tenant, destroyed_at IS NOT NULL FROM /*schema*/data_keys
WHERE key_id = ANY(:key_ids::text[]);

-- name: get_current_data_key
-- Return the data key of a scope for new content.
SELECT key_id, scope, master_id, wrapped, is_of_tenant, destroyed_at IS NOT NULL FROM /*schema*/data_keys
WHERE scope = :scope::text AND is_current;

-- name: put_data_key
-- Store a new data key, unless its scope has a current data key, or the key is stored already.
INSERT INTO /*schema*/data_keys (key_id, scope, master_id, wrapped, is_of_tenant, is_current)
VALUES (:key_id::text, :scope::text, :master_id::text, :wrapped::bytea, :is_of_tenant::boolean, true)
ON CONFLICT DO NOTHING;

-- name: restore_data_key
-- Store a data key again after the database has lost the key, for example by a failover to a server that lacks the key.
INSERT INTO /*schema*/data_keys (key_id, scope, master_id, wrapped, is_of_tenant, is_current)
VALUES (:key_id::text, :scope::text, :master_id::text, :wrapped::bytea, :is_of_tenant::boolean, false)
ON CONFLICT DO NOTHING;

-- name: rewrap_data_key
-- Store the newly wrapped form of a data key, unless the key was destroyed (`wrapped` is null) or wrapped by another
-- call meanwhile.
UPDATE /*schema*/data_keys SET
    wrapped = :wrapped::bytea, master_id = :master_id::text, is_of_tenant = :is_of_tenant::boolean
WHERE key_id = :key_id::text AND wrapped = :before::bytea;

-- name: list_data_keys
-- Return a page of data keys after a cursor, except keys that a given master key has wrapped.
SELECT key_id, scope, master_id, wrapped, is_of_tenant, destroyed_at IS NOT NULL FROM /*schema*/data_keys
WHERE key_id > :cursor_id::text AND master_id <> :master_id::text AND destroyed_at IS NULL
ORDER BY key_id LIMIT :page_size;

-- name: destroy_data_keys
-- Destroy the data keys of a scope. Values that these keys encrypt can never be read again.
UPDATE /*schema*/data_keys SET wrapped = NULL, is_current = false, destroyed_at = now()
WHERE scope = :scope::text AND destroyed_at IS NULL;

-- name: get_thread_owner
-- Return the owner of a thread.
SELECT agent, user_id, tenant_id FROM /*schema*/threads WHERE thread_id = :thread_id::text;

-- name: has_encrypted
-- Return whether a thread has an encrypted state.
-- leaves: checkpoints.state
SELECT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id::text AND substr(state, 1, 4) = E'\\x03706773'::bytea
);

-- name: list_current_data_keys
-- Return a page of the data keys for new content, in the order of their scopes, after a cursor. Leave out scopes of which
-- an older key is not retired yet.
SELECT k.key_id, k.scope FROM /*schema*/data_keys k
WHERE k.is_current AND (:cursor_scope::text IS NULL OR k.scope > :cursor_scope)
    AND (:scope::text IS NULL OR k.scope = :scope) AND k.scope <> :search_scope::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/data_keys r
        WHERE r.scope = k.scope AND r.replaced_at IS NOT NULL AND r.retired_at IS NULL AND r.destroyed_at IS NULL
    )
ORDER BY k.scope LIMIT :page_size;

-- name: replace_data_key
-- End the use of a data key for new content.
UPDATE /*schema*/data_keys SET is_current = false, replaced_at = now()
WHERE key_id = :key_id::text AND is_current;

-- name: list_replaced_data_keys
-- Return the replaced data keys under which content may still be encrypted, each with the seconds since its
-- replacement.
SELECT key_id, extract(epoch FROM now() - replaced_at)::float8 FROM /*schema*/data_keys
WHERE replaced_at IS NOT NULL AND retired_at IS NULL AND destroyed_at IS NULL;

-- name: retire_data_keys
-- Store that no row is encrypted under some data keys any more.
UPDATE /*schema*/data_keys SET retired_at = now() WHERE key_id = ANY(:key_ids::text[]) AND retired_at IS NULL;

-- name: count_data_keys
-- Return, by master key, the number of data keys that are in use, replaced, retired and destroyed.
SELECT master_id, count(*) FILTER (WHERE is_current),
    count(*) FILTER (WHERE replaced_at IS NOT NULL AND retired_at IS NULL AND destroyed_at IS NULL),
    count(*) FILTER (WHERE retired_at IS NOT NULL AND destroyed_at IS NULL),
    count(*) FILTER (WHERE destroyed_at IS NOT NULL)
FROM /*schema*/data_keys GROUP BY master_id ORDER BY master_id;
