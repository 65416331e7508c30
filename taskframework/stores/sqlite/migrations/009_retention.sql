-- When a task may be deleted, if its type sets its own retention. Null in every other task, and while the task is live.
ALTER TABLE tasks ADD COLUMN purge_at INTEGER;

CREATE INDEX tasks_to_purge ON tasks (purge_at, number) WHERE purge_at IS NOT NULL;
