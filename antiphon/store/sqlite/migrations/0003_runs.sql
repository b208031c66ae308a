ALTER TABLE responses ADD COLUMN expires_at INTEGER;
CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL AND live = 1;

CREATE TABLE runs (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    -- How many times the run was claimed since events were last appended to it.
    attempts INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0,
    -- NULL until the run ends. Then 0 until the next sweep, which sets it to the Unix time of that
    -- sweep.
    ended_at INTEGER
);
CREATE UNIQUE INDEX runs_by_id ON runs (tenant, id);
CREATE INDEX runs_unended ON runs (seq) WHERE ended_at IS NULL;
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- The requests of runs are in a table of their own, because SQLite always writes a whole row, and
-- every append changes the row of the run.
CREATE TABLE jobs (
    run INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,
    request BLOB NOT NULL,
    prompt BLOB NOT NULL
);

CREATE TABLE batches (
    run INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lines BLOB NOT NULL,
    tokens BLOB NOT NULL
);
CREATE UNIQUE INDEX batches_by_run ON batches (run, first);

CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
