-- One row: the time of the last sweep, and the times that a clock in doubt has shown. See
-- ``SweepRecord``.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    swept_at BIGINT NOT NULL,
    doubted_since BIGINT,
    doubted_at BIGINT
);
