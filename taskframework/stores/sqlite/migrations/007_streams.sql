-- For tasks of ordered streams: their place in the stream, and when a process looks whether the turn of the task has
-- come. Null in every other task.
ALTER TABLE tasks ADD COLUMN unblock_at INTEGER;
ALTER TABLE tasks ADD COLUMN stream_key TEXT;
ALTER TABLE tasks ADD COLUMN stream_position INTEGER;

CREATE INDEX tasks_to_unblock ON tasks (unblock_at) WHERE unblock_at IS NOT NULL;

-- The tasks of a stream by position; the tasks of a stream that wait for their turn, by position; and the list of the
-- tasks of a stream by time.
CREATE INDEX tasks_in_stream ON tasks (user_id, stream_key, stream_position) WHERE stream_key IS NOT NULL;
CREATE INDEX tasks_blocked ON tasks (user_id, stream_key, stream_position) WHERE unblock_at IS NOT NULL;
CREATE INDEX tasks_of_stream ON tasks (stream_key, created_at, task_id) WHERE stream_key IS NOT NULL;
