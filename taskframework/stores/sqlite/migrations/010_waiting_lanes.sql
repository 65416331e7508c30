-- What waits for a worker, by lane, so that a full lane hides nothing of another. It has all that a count needs.
CREATE INDEX tasks_waiting ON tasks (task_type, lane, status, not_before) WHERE status IN ('QUEUED', 'RETRYING');
