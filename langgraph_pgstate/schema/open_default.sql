-- Lets the owner see all tenants' rows in a default partition. The same transaction must run `wall.sql` afterwards.
ALTER TABLE /*schema*/spans_default NO FORCE ROW LEVEL SECURITY;
