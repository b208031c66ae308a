-- Responses that are being generated, and count against the quota of their tenant.
CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
-- What a tenant's files take is read from an index alone.
CREATE INDEX files_of_tenant ON files (tenant) INCLUDE (bytes);
