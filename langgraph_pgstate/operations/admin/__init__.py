"""Migrations, maintenance, checks and sizes of a schema."""
