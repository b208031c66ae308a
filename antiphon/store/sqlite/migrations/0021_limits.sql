-- api_key: the name of the API key that created the run. A key may have only a limited number of
-- unended runs.
ALTER TABLE runs ADD COLUMN api_key TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_active ON runs (tenant, api_key) WHERE ended_at IS NULL;
