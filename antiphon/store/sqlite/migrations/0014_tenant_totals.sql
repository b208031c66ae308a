-- The responses of a tenant and their bytes are counted in these indexes alone, without reading the
-- rows.
CREATE INDEX responses_of_tenant ON responses (tenant, created_at, seq, bytes) WHERE live = 1;
CREATE INDEX responses_buried ON responses (tenant, bytes) WHERE live = 0;
-- The total of all tenants is not counted in a table of its own any more.
DROP TRIGGER responses_kept;
DROP TRIGGER responses_changed;
DROP TRIGGER responses_freed;
DROP TABLE totals;
