-- For parents: when their sub-tasks are to be stored, when the parent is to be looked at, and when its sub-tasks are to be
-- cancelled. For sub-tasks: their place. In every other task these columns are null, so that the partial indexes do not
-- contain it.
ALTER TABLE tasks ADD COLUMN spawn_at INTEGER;
ALTER TABLE tasks ADD COLUMN check_at INTEGER;
ALTER TABLE tasks ADD COLUMN cascade_at INTEGER;
ALTER TABLE tasks ADD COLUMN parent_generation INTEGER;
ALTER TABLE tasks ADD COLUMN parent_round INTEGER;
ALTER TABLE tasks ADD COLUMN parent_slot INTEGER;

CREATE INDEX tasks_to_spawn ON tasks (spawn_at) WHERE spawn_at IS NOT NULL;
CREATE INDEX tasks_to_check ON tasks (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX tasks_to_cascade ON tasks (cascade_at) WHERE cascade_at IS NOT NULL;

-- The sub-tasks of a task in the order of its plan: the first index has all of them together, the second one each status
-- separately. A count reads only the second one. Only the second one is written when a status changes.
DROP INDEX tasks_of_parent;
CREATE INDEX tasks_planned ON tasks (parent_task_id, parent_generation, parent_round, parent_slot)
WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_planned_in_status ON tasks (parent_task_id, status, parent_generation, parent_round, parent_slot)
WHERE parent_task_id IS NOT NULL;
