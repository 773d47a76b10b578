"""Tool executions: intents and outcomes."""
