-- Forgets what deleted model calls have cost.

DROP TABLE /*schema*/deleted_costs;
