-- The responses of a tenant and their bytes are counted in these indexes alone, without reading the
-- rows.
CREATE INDEX responses_of_tenant ON responses (tenant, created_at, seq) INCLUDE (bytes) WHERE live;
DROP INDEX responses_buried;
CREATE INDEX responses_buried ON responses (tenant, seq) INCLUDE (bytes) WHERE NOT live;
