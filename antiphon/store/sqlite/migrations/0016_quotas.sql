-- The files of a tenant and their bytes are counted in this index alone, without reading the rows.
CREATE INDEX files_of_tenant ON files (tenant, bytes);
