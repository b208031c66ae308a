-- The processes that own containers, each with its lease.
CREATE TABLE container_owners (
    name TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- The containers. owner: the process that runs the container. expired_at: NULL while the container
-- is active.
CREATE TABLE containers (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    is_auto BOOLEAN NOT NULL,
    expired_at TIMESTAMPTZ,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX containers_by_id ON containers (tenant, id);
CREATE INDEX containers_by_owner ON containers (owner) WHERE expired_at IS NULL;
CREATE INDEX containers_by_expiry ON containers (expired_at) WHERE expired_at IS NOT NULL;
