-- What a tenant holds is read from indexes alone.
CREATE INDEX responses_of_tenant ON responses (tenant, created_at, seq, bytes) WHERE live = 1;
CREATE INDEX responses_buried ON responses (tenant, bytes) WHERE live = 0;
-- The totals of all tenants are no longer counted apart.
DROP TRIGGER responses_kept;
DROP TRIGGER responses_changed;
DROP TRIGGER responses_freed;
DROP TABLE totals;
