-- The audit log. Each row is an administrative act.
CREATE TABLE audit (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    at BIGINT NOT NULL,
    type TEXT NOT NULL,
    target TEXT NOT NULL,
    actor TEXT NOT NULL,
    actor_tenant TEXT NOT NULL,
    address TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at);
