-- Lets the owner see which threads all tenants hold, and their spans, until the walls are made again, in a transaction.
ALTER TABLE /*schema*/holds NO FORCE ROW LEVEL SECURITY;
ALTER TABLE /*schema*/spans NO FORCE ROW LEVEL SECURITY;
