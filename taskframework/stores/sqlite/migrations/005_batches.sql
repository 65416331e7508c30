-- For batches: when an upload that was not finished is given up, and when the failed tasks of the batch are retried. Few
-- tasks are batches, so the list of batches has an index of its own.
ALTER TABLE tasks ADD COLUMN seal_by_at INTEGER;
ALTER TABLE tasks ADD COLUMN retry_at INTEGER;
ALTER TABLE tasks ADD COLUMN is_batch INTEGER NOT NULL DEFAULT 0;

CREATE INDEX tasks_to_seal ON tasks (seal_by_at) WHERE seal_by_at IS NOT NULL;
CREATE INDEX tasks_to_retry ON tasks (retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX tasks_batches ON tasks (created_at, task_id) WHERE is_batch = 1;
