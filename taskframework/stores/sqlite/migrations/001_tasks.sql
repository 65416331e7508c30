-- `document` is the task: JSON with every field except the parameters. The other columns repeat the fields that queries
-- need. Times are milliseconds since 1970. The column of a driver (next_dispatch_at, lease_expires_at, publish_at,
-- deadline_at) is null while the driver does not drive the task, so that its partial index contains only the tasks that
-- the driver drives.
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE,
    task_type TEXT NOT NULL,
    user_id TEXT NOT NULL,
    lane TEXT NOT NULL,
    parent_task_id TEXT,
    idempotency_key TEXT,
    created_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    dispatch_epoch INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    next_dispatch_at INTEGER,
    lease_expires_at INTEGER,
    publish_at INTEGER,
    deadline_at INTEGER,
    finished_at INTEGER,
    undriven INTEGER NOT NULL,
    document TEXT NOT NULL
);

-- A table of its own: SQLite writes the whole row again whenever a column of it changes, and parameters may be large and
-- almost never change.
CREATE TABLE task_parameters (
    number INTEGER PRIMARY KEY,
    parameters TEXT NOT NULL
);

CREATE TRIGGER task_deleted AFTER DELETE ON tasks BEGIN
    DELETE FROM task_parameters WHERE number = old.number;
END;

CREATE UNIQUE INDEX tasks_idempotency ON tasks (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX tasks_newest ON tasks (created_at, task_id);
CREATE INDEX tasks_of_user ON tasks (user_id, created_at, task_id);
CREATE INDEX tasks_of_user_and_status ON tasks (user_id, status, created_at, task_id);
CREATE INDEX tasks_of_type ON tasks (task_type, created_at, task_id);
CREATE INDEX tasks_of_parent ON tasks (parent_task_id, created_at, task_id) WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_of_status ON tasks (status, created_at, task_id);

CREATE INDEX tasks_to_dispatch ON tasks (next_dispatch_at) WHERE next_dispatch_at IS NOT NULL;
CREATE INDEX tasks_leased ON tasks (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX tasks_to_publish ON tasks (publish_at) WHERE publish_at IS NOT NULL;
CREATE INDEX tasks_with_deadline ON tasks (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX tasks_done ON tasks (finished_at) WHERE status IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED');
CREATE INDEX tasks_dead ON tasks (finished_at, task_id) WHERE status IN ('FAILED', 'DEAD_LETTER');

-- This index should always be empty: an entry is a live task that nothing will ever continue.
CREATE INDEX tasks_undriven ON tasks (undriven) WHERE undriven = 1;

CREATE TABLE dead_messages (
    id TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    queue TEXT NOT NULL,
    reason TEXT NOT NULL,
    task_id TEXT,
    task_type TEXT
);

CREATE INDEX dead_messages_newest ON dead_messages (at, id);
