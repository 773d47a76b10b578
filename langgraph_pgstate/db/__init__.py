"""The only package that imports psycopg: connections, pools, retries, errors translated, the embedded server."""
