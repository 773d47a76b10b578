-- Lists of an agent's threads read no others. Names the events that record what persons did.

CREATE INDEX threads_agent_idx ON /*schema*/threads (agent, updated_at DESC, thread_id) WHERE agent IS NOT NULL;

COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run), budget (a model call was '
    'refused), corrupt, action (of a person, on a page) or another';
