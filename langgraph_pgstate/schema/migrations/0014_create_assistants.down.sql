-- Removes assistants.

DROP TABLE /*schema*/assistant_versions;
DROP TABLE /*schema*/assistants;
