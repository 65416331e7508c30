-- By when a worker must have begun a task. Null in a task without a queue_timeout, and in a task that has begun.
ALTER TABLE tasks ADD COLUMN start_by_at INTEGER;

CREATE INDEX tasks_to_start ON tasks (start_by_at) WHERE start_by_at IS NOT NULL;
