-- Runs are claimed tenant by tenant: of the one with the fewest running ones first.
CREATE INDEX runs_by_tenant ON runs (tenant, seq) WHERE ended_at IS NULL;
CREATE INDEX runs_owned ON runs (tenant, owner) WHERE ended_at IS NULL AND owner IS NOT NULL;
