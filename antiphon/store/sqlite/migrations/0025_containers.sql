-- The container directory: the processes that own containers, and the containers. If only one
-- process uses the database, it keeps the directory in memory.

-- lease_until: seconds of the machine's monotonic clock.
CREATE TABLE container_owners (name TEXT PRIMARY KEY, url TEXT NOT NULL, lease_until REAL NOT NULL)
    WITHOUT ROWID;

-- expired_at: seconds of the same clock. NULL while the container is active.
CREATE TABLE containers (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    is_auto INTEGER NOT NULL,
    expired_at REAL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX containers_by_id ON containers (tenant, id);
CREATE INDEX containers_by_owner ON containers (owner) WHERE expired_at IS NULL;
CREATE INDEX containers_by_expiry ON containers (expired_at) WHERE expired_at IS NOT NULL;
