"""The schema: its tables, migrations, partitions and named queries."""
