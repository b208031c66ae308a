CREATE TABLE letters (
    id TEXT PRIMARY KEY,
    body BYTEA NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX letters_by_time ON letters (due_at);
