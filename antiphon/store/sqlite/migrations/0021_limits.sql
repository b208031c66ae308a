-- The key that a run is charged to: how many it has is limited.
ALTER TABLE runs ADD COLUMN api_key TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_active ON runs (tenant, api_key) WHERE ended_at IS NULL;
