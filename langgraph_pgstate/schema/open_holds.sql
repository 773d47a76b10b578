-- Lets the owner see all tenants' legal holds and spans. The same transaction must run `wall.sql` afterwards.
ALTER TABLE /*schema*/holds NO FORCE ROW LEVEL SECURITY;
ALTER TABLE /*schema*/spans NO FORCE ROW LEVEL SECURITY;
