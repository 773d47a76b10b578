"""Connections, pools, retries and the embedded server. No other package imports psycopg."""
