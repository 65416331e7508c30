-- The id of the limit for which a task waits in the store. Null in every other task, so that the index does not contain
-- it.
ALTER TABLE tasks ADD COLUMN waits_for TEXT;

CREATE INDEX tasks_waiting_for ON tasks (waits_for, lane, not_before) WHERE waits_for IS NOT NULL;
