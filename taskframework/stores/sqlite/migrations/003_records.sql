-- Small documents beside the tasks. Nothing but ids is unique in this store: the ids of records, and those of tasks.
CREATE TABLE records (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    revision TEXT NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;

CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;

-- A record for the idempotency key of each stored task. The id is made as in taskframework/model/records.py: of printable
-- ASCII, of which keys consist, only % and / are escaped. The retention looks at these records a minute from now, and
-- deletes the keys of tasks that ended long ago.
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
