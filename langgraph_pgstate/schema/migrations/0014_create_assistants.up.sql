-- Adds assistants: graphs with a config and a context of their own, in versions.

CREATE TABLE /*schema*/assistants (
    assistant_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (assistant_id)
);
CREATE TABLE /*schema*/assistant_versions (
    assistant_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    graph text NOT NULL,
    name text NOT NULL,
    description text,
    metadata jsonb NOT NULL DEFAULT '{}',
    data bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (assistant_id, version)
);

COMMENT ON TABLE /*schema*/assistants IS
    'Assistants: graphs with a config and a context of their own. Not part of any thread.';
COMMENT ON COLUMN /*schema*/assistants.assistant_id IS 'assistant';
COMMENT ON COLUMN /*schema*/assistants.version IS 'version that runs use; not always the newest';
COMMENT ON COLUMN /*schema*/assistants.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/assistants.updated_at IS 'time of its last change';
COMMENT ON TABLE /*schema*/assistant_versions IS 'Versions of assistants, which do not change.';
COMMENT ON COLUMN /*schema*/assistant_versions.assistant_id IS 'assistant';
COMMENT ON COLUMN /*schema*/assistant_versions.version IS 'number of the version, from 1';
COMMENT ON COLUMN /*schema*/assistant_versions.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/assistant_versions.name IS 'name for people; need not be unique';
COMMENT ON COLUMN /*schema*/assistant_versions.description IS 'description for people; null: none';
COMMENT ON COLUMN /*schema*/assistant_versions.metadata IS 'metadata of the caller; that of its runs, too';
COMMENT ON COLUMN /*schema*/assistant_versions.data IS 'config and context; encoded';
COMMENT ON COLUMN /*schema*/assistant_versions.created_at IS 'time it was made';
