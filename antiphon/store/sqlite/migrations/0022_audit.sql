-- The audit log. Each row is an administrative act.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    target TEXT NOT NULL,
    actor TEXT NOT NULL,
    actor_tenant TEXT NOT NULL,
    address TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at);
