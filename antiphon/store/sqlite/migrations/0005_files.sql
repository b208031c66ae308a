CREATE TABLE files (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at INTEGER,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX files_by_id ON files (tenant, id);
CREATE INDEX files_in_order ON files (tenant, seq);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;

-- The contents are in a table of their own, so that a list of files does not read them.
CREATE TABLE contents (
    file INTEGER PRIMARY KEY REFERENCES files (seq) ON DELETE CASCADE,
    content BLOB NOT NULL
);
