-- What a tenant's files take is read from an index alone.
CREATE INDEX files_of_tenant ON files (tenant, bytes);
