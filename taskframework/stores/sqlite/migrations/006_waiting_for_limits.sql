-- What waits in the store because a limit let it not begin: the id of that limit. Null in every other task, so that the
-- index holds none of those.
ALTER TABLE tasks ADD COLUMN waits_for TEXT;

CREATE INDEX tasks_waiting_for ON tasks (waits_for, lane, not_before) WHERE waits_for IS NOT NULL;
