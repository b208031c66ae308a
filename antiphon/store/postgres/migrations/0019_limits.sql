-- Through these tables, the processes exchange the request counts of clients with rate limits. The
-- tables are unlogged, so they may be empty after a crash of the database.
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
-- api_key: the name of the API key that created the run. A key may have only a limited number of
-- unended runs.
ALTER TABLE runs ADD COLUMN api_key TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_active ON runs (tenant, api_key) WHERE ended_at IS NULL;
