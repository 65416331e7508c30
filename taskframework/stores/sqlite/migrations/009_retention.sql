-- When a task may go whose type says how long it stays. Null in every other task, and while it is live.
ALTER TABLE tasks ADD COLUMN purge_at INTEGER;

CREATE INDEX tasks_to_purge ON tasks (purge_at, number) WHERE purge_at IS NOT NULL;
