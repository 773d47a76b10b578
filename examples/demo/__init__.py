"""What `make demo` runs: an agent that is killed, resumed and forked, and what PostgreSQL holds of it."""
