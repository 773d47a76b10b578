-- The schema that everything is in.
CREATE SCHEMA IF NOT EXISTS /*schema_name*/pgstate;
