-- name: set_tenant
-- Name the tenant of the transaction, whose rows alone it then sees.
SELECT set_config('pgstate.tenant', :tenant::text, true);
