CREATE TABLE letters (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    due_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX letters_by_time ON letters (due_at);
