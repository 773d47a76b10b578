-- name: set_tenant
-- Name the tenant of the transaction. The transaction then sees only this tenant's rows.
SELECT set_config('pgstate.tenant', :tenant::text, true);
