-- The declarations of task types, as JSON. Each process that executes a type declares it.
CREATE TABLE task_types (
    task_type TEXT PRIMARY KEY,
    declaration TEXT NOT NULL
);
