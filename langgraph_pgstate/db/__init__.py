"""The only room that knows psycopg: ports, pools, retries, errors translated, the embedded server."""
