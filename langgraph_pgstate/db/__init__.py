"""The only package that imports psycopg. It has connections, pools, retries, and the embedded server."""
