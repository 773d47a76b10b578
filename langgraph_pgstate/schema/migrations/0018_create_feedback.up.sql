-- Adds feedback on runs and spans, and the release of the application that a run ran with.

ALTER TABLE /*schema*/runs ADD COLUMN release text;

CREATE TABLE /*schema*/feedback (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    feedback_id text COLLATE "C" NOT NULL,
    span_id text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text,
    source text NOT NULL,
    name text NOT NULL,
    score double precision,
    comment text,
    value_type text,
    value bytea,
    PRIMARY KEY (thread_id, run_id, feedback_id),
    CONSTRAINT feedback_run FOREIGN KEY (thread_id, run_id) REFERENCES /*schema*/runs ON DELETE CASCADE,
    CONSTRAINT feedback_says_something CHECK (score IS NOT NULL OR comment IS NOT NULL OR value IS NOT NULL),
    CONSTRAINT feedback_score_is_bounded CHECK (score BETWEEN -1e15 AND 1e15)
);
CREATE INDEX feedback_created_at_idx ON /*schema*/feedback (created_at DESC, thread_id, run_id, feedback_id);

COMMENT ON COLUMN /*schema*/runs.release IS 'release of the application that ran it; null: not known';
COMMENT ON COLUMN /*schema*/queue.enqueued_at IS
    'time it was enqueued, or retried by hand; of a run with run_after, from that time on, the time it was due';

COMMENT ON TABLE /*schema*/feedback IS
    'Scores and comments on runs and spans, by people and programs. Deleted with the run.';
COMMENT ON COLUMN /*schema*/feedback.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/feedback.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/feedback.feedback_id IS 'the feedback; given under the same id again, it is replaced';
COMMENT ON COLUMN /*schema*/feedback.span_id IS 'span of the run that is judged; null: the whole run';
COMMENT ON COLUMN /*schema*/feedback.created_at IS 'time it was given first';
COMMENT ON COLUMN /*schema*/feedback.created_by IS 'who gave it; null: not known';
COMMENT ON COLUMN /*schema*/feedback.source IS 'human, model or program: what kind of judge gave it';
COMMENT ON COLUMN /*schema*/feedback.name IS 'what is judged, like helpfulness';
COMMENT ON COLUMN /*schema*/feedback.score IS 'score, on a scale of the application, from -1e15 to 1e15; null: none';
COMMENT ON COLUMN /*schema*/feedback.comment IS
    'comment in clear text; null: none, or the state has a serializer of its own';
COMMENT ON COLUMN /*schema*/feedback.value_type IS 'type of value, from the serializer; null: no value';
COMMENT ON COLUMN /*schema*/feedback.value IS
    'comment, encoded by a serializer of the caller, which may encrypt it; null: none, or LangGraph''s own serializer';
