-- Removes the index of agents.

DROP INDEX /*schema*/threads_agent_idx;
