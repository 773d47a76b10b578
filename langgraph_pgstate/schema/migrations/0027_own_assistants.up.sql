-- Keeps whose an assistant and a schedule is, for servers whose authorization has no handler for them. Of assistants that
-- are there it is not known: nobody changes them by the server until a handler says who may. Schedules of clients are
-- those of the user whose runs they are.

ALTER TABLE /*schema*/assistants ADD COLUMN owner_id text COLLATE "C";
ALTER TABLE /*schema*/schedules ADD COLUMN owner_id text COLLATE "C";
UPDATE /*schema*/schedules SET owner_id = options -> 'owner' ->> 'user_id' WHERE metadata ? 'assistant_id';
CREATE INDEX schedules_thread_id_idx ON /*schema*/schedules (thread_id) WHERE thread_id IS NOT NULL;

COMMENT ON COLUMN /*schema*/assistants.owner_id IS 'authenticated user of the server who made it; null: none';
COMMENT ON COLUMN /*schema*/schedules.owner_id IS
    'authenticated user of the server who made it or changed it last; null: none';
