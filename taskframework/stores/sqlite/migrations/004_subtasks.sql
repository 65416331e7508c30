-- Parents and sub-tasks: when each is due to be stored, looked at and cancelled, and where a sub-task belongs.
-- Null in every other task, so that the partial indexes hold none of those.
ALTER TABLE tasks ADD COLUMN spawn_at INTEGER;
ALTER TABLE tasks ADD COLUMN check_at INTEGER;
ALTER TABLE tasks ADD COLUMN cascade_at INTEGER;
ALTER TABLE tasks ADD COLUMN parent_generation INTEGER;
ALTER TABLE tasks ADD COLUMN parent_round INTEGER;
ALTER TABLE tasks ADD COLUMN parent_slot INTEGER;

CREATE INDEX tasks_to_spawn ON tasks (spawn_at) WHERE spawn_at IS NOT NULL;
CREATE INDEX tasks_to_check ON tasks (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX tasks_to_cascade ON tasks (cascade_at) WHERE cascade_at IS NOT NULL;

-- The sub-tasks of a task in the order of its plan, and those in each status by themselves. A count reads the second
-- alone; the first never changes.
DROP INDEX tasks_of_parent;
CREATE INDEX tasks_planned ON tasks (parent_task_id, parent_generation, parent_round, parent_slot)
WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_planned_in_status ON tasks (parent_task_id, status, parent_generation, parent_round, parent_slot)
WHERE parent_task_id IS NOT NULL;
