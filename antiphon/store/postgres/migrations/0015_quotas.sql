-- Reservations: responses that are being generated. They count against the quota of their tenant
-- before they are saved.
CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);
-- The files of a tenant and their bytes are counted in this index alone, without reading the rows.
CREATE INDEX files_of_tenant ON files (tenant) INCLUDE (bytes);
