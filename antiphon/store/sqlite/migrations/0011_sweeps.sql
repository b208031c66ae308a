-- One row: the time of the last sweep, and the times that a clock in doubt has shown. See
-- ``SweepRecord``.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    swept_at INTEGER NOT NULL,
    doubted_since INTEGER,
    doubted_at INTEGER
);
