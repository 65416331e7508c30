-- Small documents beside the tasks. The id is all that is unique here, of records and of tasks.
CREATE TABLE records (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    revision TEXT NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;

CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;

-- The idempotency keys of stored tasks. An id is made as in taskframework/model/records.py; keys are printable ASCII.
-- Each is looked at a minute from now: the one of a task that ended long ago is over.
INSERT INTO records (id, kind, data, revision, expires_at)
SELECT
    'idempotency/' || replace(replace(user_id, '%', '%25'), '/', '%2F')
    || '/' || replace(replace(idempotency_key, '%', '%25'), '/', '%2F'),
    'idempotency',
    json_object('task_id', task_id, 'request_hash', json_extract(document, '$.parameters_hash')),
    lower(hex(randomblob(16))),
    CAST(strftime('%s', 'now') AS INTEGER) * 1000 + 60000
FROM tasks INDEXED BY tasks_idempotency WHERE idempotency_key IS NOT NULL;

DROP INDEX tasks_idempotency;

INSERT INTO records (id, kind, data, revision)
SELECT 'task-type/' || task_type, 'task-type', declaration, lower(hex(randomblob(16))) FROM task_types;

DROP TABLE task_types;
