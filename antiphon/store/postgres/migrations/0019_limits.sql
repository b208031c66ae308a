-- What the processes tell each other about the requests of limited clients. Not logged: a crash may
-- empty these tables.
CREATE UNLOGGED TABLE rates (
    scope TEXT PRIMARY KEY,
    level DOUBLE PRECISION NOT NULL,
    per_minute BIGINT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE running_requests (
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    count BIGINT NOT NULL,
    heard_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (scope, owner)
) WITH (fillfactor = 50);
-- The key that a run is charged to: how many it has is limited.
ALTER TABLE runs ADD COLUMN api_key TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_active ON runs (tenant, api_key) WHERE ended_at IS NULL;
