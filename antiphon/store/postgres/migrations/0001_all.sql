CREATE TABLE responses (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    created_at BIGINT NOT NULL,
    live BOOLEAN NOT NULL DEFAULT TRUE,
    bytes BIGINT NOT NULL,
    body BYTEA NOT NULL,
    input BYTEA NOT NULL,
    output BYTEA NOT NULL,
    base INTEGER,
    tokens BYTEA,
    fingerprint TEXT,
    expires_at BIGINT
);
CREATE UNIQUE INDEX responses_by_id ON responses (tenant, id);
CREATE INDEX responses_by_parent ON responses (tenant, parent) WHERE parent IS NOT NULL;
-- The next two indexes contain the column bytes. So a sweep can add up the bytes without reading
-- the rows.
CREATE INDEX responses_by_age ON responses (created_at, seq) INCLUDE (bytes) WHERE live;
CREATE INDEX responses_buried ON responses (seq) INCLUDE (bytes) WHERE NOT live;
CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL AND live;

CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, id, response)
);
CREATE INDEX items_by_response ON items (response);

CREATE TABLE conversations (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX conversations_by_id ON conversations (tenant, id);

CREATE TABLE conversation_items (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation BIGINT NOT NULL REFERENCES conversations (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX conversation_items_by_id ON conversation_items (conversation, id);
CREATE INDEX conversation_items_of_tenant ON conversation_items (tenant, id);

-- The processes that work on runs (the owners), with the time of the last heartbeat of each.
CREATE TABLE owners (name TEXT PRIMARY KEY, heard_at TIMESTAMPTZ NOT NULL DEFAULT now());

CREATE TABLE runs (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    request BYTEA NOT NULL,
    prompt BYTEA NOT NULL,
    -- The process that works on the run. NULL: the run has no owner. Empty: a process has taken the
    -- run away from its owner, in order to end it.
    owner TEXT,
    claimed_at TIMESTAMPTZ,
    epoch INTEGER NOT NULL DEFAULT 0,
    -- How many times the run was claimed since events were last appended to it.
    attempts INTEGER NOT NULL DEFAULT 0,
    -- NULL until the run ends. Then 0 until the next sweep, which sets it to the Unix time of that
    -- sweep.
    ended_at BIGINT
);
CREATE UNIQUE INDEX runs_by_id ON runs (tenant, id);
CREATE INDEX runs_unended ON runs (seq) WHERE ended_at IS NULL;
CREATE INDEX runs_owned ON runs (owner) WHERE ended_at IS NULL;
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- The column run is not a foreign key. The check of a foreign key would take half as long as the
-- insertion of a batch itself.
CREATE TABLE batches (
    run BIGINT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lines BYTEA NOT NULL,
    tokens BYTEA NOT NULL,
    PRIMARY KEY (run, first)
);

CREATE FUNCTION drop_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM antiphon.batches WHERE run = old.seq;
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_gone AFTER DELETE ON runs FOR EACH ROW EXECUTE FUNCTION drop_batches();

CREATE TABLE holds (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    holder TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation)
);
CREATE INDEX holds_by_owner ON holds (owner);
CREATE INDEX holds_by_holder ON holds (tenant, holder);

CREATE TABLE secrets (name TEXT PRIMARY KEY, value BYTEA NOT NULL);
