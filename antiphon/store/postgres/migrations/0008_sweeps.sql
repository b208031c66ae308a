-- The clock of the last sweep, one row: see ``SweepRecord``.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    swept_at BIGINT NOT NULL,
    doubted_since BIGINT,
    doubted_at BIGINT
);
