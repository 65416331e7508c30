-- By when a worker must have begun a task. Null in every task without a queue_timeout, and in all that were begun.
ALTER TABLE tasks ADD COLUMN start_by_at INTEGER;

CREATE INDEX tasks_to_start ON tasks (start_by_at) WHERE start_by_at IS NOT NULL;
