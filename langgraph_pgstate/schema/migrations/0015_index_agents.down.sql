-- Removes the index of agents.

DROP INDEX /*schema*/threads_agent_idx;

COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run), budget (a model call was '
    'refused) or corrupt';
