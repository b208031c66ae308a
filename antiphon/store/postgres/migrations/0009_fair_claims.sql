-- Indexes for fair claims: the next run that is claimed belongs to the tenant with the fewest
-- running runs.
CREATE INDEX runs_by_tenant ON runs (tenant, seq) WHERE ended_at IS NULL;
DROP INDEX runs_owned;
CREATE INDEX runs_owned ON runs (owner, tenant) WHERE ended_at IS NULL AND owner IS NOT NULL;
