"""Measurements of durable runs, beside the job queues procrastinate, pgqueuer and DBOS."""
