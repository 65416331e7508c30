-- What processes that execute declare of their task types, as JSON.
CREATE TABLE task_types (
    task_type TEXT PRIMARY KEY,
    declaration TEXT NOT NULL
);
