-- The tasks that wait for a worker, by type and lane. A count reads up to a bound; without this index, the tasks of a long
-- lane would use up the bound before those of another lane. The index has every column that such a count needs.
CREATE INDEX tasks_waiting ON tasks (task_type, lane, status, not_before) WHERE status IN ('QUEUED', 'RETRYING');
