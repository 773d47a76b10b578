-- The schema of all tables.
CREATE SCHEMA IF NOT EXISTS /*schema_name*/pgstate;
