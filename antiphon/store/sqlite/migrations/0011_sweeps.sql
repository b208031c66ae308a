-- The clock of the last sweep, one row: see ``SweepRecord``.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    swept_at INTEGER NOT NULL,
    doubted_since INTEGER,
    doubted_at INTEGER
);
