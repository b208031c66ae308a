CREATE TABLE files (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    expires_at BIGINT,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX files_by_id ON files (tenant, id);
CREATE INDEX files_in_order ON files (tenant, seq);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE contents (
    file BIGINT PRIMARY KEY REFERENCES files (seq) ON DELETE CASCADE,
    content BYTEA NOT NULL
);
-- EXTERNAL prevents compression: most files are compressed already.
ALTER TABLE contents ALTER COLUMN content SET STORAGE EXTERNAL;
