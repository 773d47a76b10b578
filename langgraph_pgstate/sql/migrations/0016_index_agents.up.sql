-- Lists of an agent's threads read no others.

CREATE INDEX threads_agent_idx ON /*schema*/threads (agent, updated_at DESC, thread_id) WHERE agent IS NOT NULL;
