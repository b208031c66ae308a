-- Responses.

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
    expires_at BIGINT,
    -- The key of the blob that holds the input, the output and the tokens of a large response,
    -- outside of the database. The column input then holds a reference to the blob. NULL: there is
    -- no blob.
    blob TEXT,
    -- When the items of the response were made.
    times BYTEA
);
-- The next two indexes contain the column bytes. So a sweep can add up the bytes without reading
-- the rows.
CREATE INDEX responses_by_age ON responses (created_at, seq) INCLUDE (bytes) WHERE live;
CREATE INDEX responses_of_tenant ON responses (tenant, created_at, seq) INCLUDE (bytes) WHERE live;
CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL AND live;
CREATE INDEX responses_by_blob ON responses (blob) WHERE blob IS NOT NULL;

CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, id, response)
);

-- What a list of responses shows. It is in a table of its own, so that a list does not read the
-- large columns of the responses.
CREATE TABLE summaries (
    seq BIGINT PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    model TEXT NOT NULL,
    parent TEXT,
    conversation TEXT,
    background BOOLEAN NOT NULL,
    failed BOOLEAN NOT NULL,
    tools TEXT NOT NULL,
    text TEXT NOT NULL,
    body BYTEA NOT NULL
);

-- These two tables hold the number of responses of each tenant, and their bytes. The totals of a
-- tenant are the sum of its row in response_sums and its rows in response_changes. A statement that
-- changes responses only inserts rows into response_changes, so that two such statements do not wait
-- for each other. From time to time, these rows are added to response_sums.
CREATE TABLE response_sums (
    tenant TEXT PRIMARY KEY,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE response_changes (
    tenant TEXT NOT NULL,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX response_changes_of_tenant ON response_changes (tenant);
CREATE VIEW response_totals AS
SELECT tenant, sum(responses)::bigint AS responses, sum(bytes)::bigint AS bytes FROM (
    SELECT tenant, responses, bytes FROM response_sums
    UNION ALL
    SELECT tenant, responses, bytes FROM response_changes
) AS parts GROUP BY tenant;

-- Insertions and updates mostly change a single response. For a single row, a trigger FOR EACH
-- STATEMENT would take three times as long as a trigger FOR EACH ROW.
CREATE FUNCTION count_added_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    VALUES (new.tenant, new.live::int, new.bytes);
    RETURN NULL;
END
$$;
CREATE TRIGGER response_added AFTER INSERT ON responses
FOR EACH ROW EXECUTE FUNCTION count_added_response();

CREATE FUNCTION count_changed_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    VALUES (new.tenant, new.live::int - old.live::int, new.bytes - old.bytes);
    RETURN NULL;
END
$$;
CREATE TRIGGER response_changed AFTER UPDATE ON responses
FOR EACH ROW WHEN (new.live <> old.live OR new.bytes <> old.bytes)
EXECUTE FUNCTION count_changed_response();

-- A deletion often deletes many responses. So this trigger is FOR EACH STATEMENT.
CREATE FUNCTION count_removed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, -(count(*) FILTER (WHERE live)), -sum(bytes) FROM removed GROUP BY tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER responses_removed AFTER DELETE ON responses REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION count_removed_responses();

-- Runs.

-- The processes that work on runs (the owners), with the time of the last heartbeat of each.
CREATE TABLE owners (name TEXT PRIMARY KEY, heard_at TIMESTAMPTZ NOT NULL DEFAULT now());

CREATE TABLE runs (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    -- The name of the API key that created the run. A key may have only a limited number of unended
    -- runs.
    api_key TEXT NOT NULL DEFAULT '',
    -- Whether only claims that name the run find it.
    by_name BOOLEAN NOT NULL DEFAULT FALSE,
    request BYTEA NOT NULL,
    prompt BYTEA NOT NULL,
    -- The process that works on the run. NULL: the run has no owner. Empty: a process has taken the
    -- run away from its owner, in order to end it.
    owner TEXT,
    claimed_at TIMESTAMPTZ,
    epoch INTEGER NOT NULL DEFAULT 0,
    -- How many times the run was claimed since events were last appended to it.
    attempts INTEGER NOT NULL DEFAULT 0,
    -- The processes that have readers of the run and follow it until followed_until. The process
    -- that appends events to the run notifies these processes.
    followers TEXT[] NOT NULL DEFAULT '{}',
    followed_until TIMESTAMPTZ,
    -- The input with which clients steer the run, and how many times it was changed.
    steering BYTEA,
    steering_count INTEGER NOT NULL DEFAULT 0,
    -- Until this time, the run waits behind all runs that have 0 here. The first heartbeat after this
    -- time sets it to 0.
    start_by BIGINT NOT NULL DEFAULT 0,
    -- NULL until the run ends. Then 0 until the next sweep, which sets it to the Unix time of that
    -- sweep.
    ended_at BIGINT
);
CREATE INDEX runs_owned ON runs (owner, tenant) WHERE ended_at IS NULL AND owner IS NOT NULL;

-- Events are partitioned by the row number of their run, so each partition holds the events of runs
-- that were created one after another. A sweep drops the partitions of old runs as a whole, and
-- creates new partitions in advance (see partitions.py).
--
-- The column run is not a foreign key. The check of a foreign key would take half as long as the
-- insertion of a batch itself.
CREATE TABLE batches (
    run BIGINT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    -- When the events were made.
    at DOUBLE PRECISION,
    lines BYTEA NOT NULL,
    tokens BYTEA NOT NULL,
    PRIMARY KEY (run, first)
) PARTITION BY RANGE (run);
CREATE TABLE batches_0 PARTITION OF batches FOR VALUES FROM (0) TO (16384);
-- The default partition. It receives the batches of a run if no partition was created for the run
-- in time.
CREATE TABLE batches_rest PARTITION OF batches DEFAULT;

-- Locks of conversations.
--
-- confirmed_at: when a response last confirmed that it has the lock. A transaction that relies on
-- the lock sets this column. Another transaction that wants to take the lock away waits for the
-- row. It then sees the new value of this column. It does not see the changes of other tables that
-- the first transaction made, because a statement sees other rows as they were when the statement
-- began.
--
-- has_run: whether the lock belongs to a run. Such a lock is released only when the run ends or is
-- deleted.
CREATE TABLE locks (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    holder TEXT NOT NULL,
    owner TEXT NOT NULL,
    confirmed_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    has_run BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (tenant, conversation)
);
CREATE INDEX locks_by_owner ON locks (owner);

-- Reservations: responses that are being generated. They count against the quota of their tenant
-- before they are saved.
CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Through these tables, the processes exchange the request counts of clients with rate limits. The
-- tables are unlogged, so they may be empty after a crash of the database.
CREATE UNLOGGED TABLE rates (
    scope TEXT PRIMARY KEY,
    level DOUBLE PRECISION NOT NULL,
    per_minute BIGINT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE running_requests (
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    count BIGINT NOT NULL,
    heard_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (scope, owner)
) WITH (fillfactor = 50);

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

-- {shared}

-- The files of a tenant and their bytes are counted in this index alone, without reading the rows.
CREATE INDEX files_of_tenant ON files (tenant) INCLUDE (bytes);
-- EXTERNAL prevents compression: most files are compressed already.
ALTER TABLE contents ALTER COLUMN content SET STORAGE EXTERNAL;

-- The keys of blobs that no file or response uses any more. A key is removed when the content of its
-- blob is deleted.
CREATE TABLE unused_blobs (key TEXT PRIMARY KEY);

-- The first statement locks the row of the blob. So no other transaction can give the blob to a new
-- file before the second statement.
CREATE FUNCTION drop_file_blob() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE antiphon.blobs SET files = files - 1 WHERE seq = old.blob;
    WITH unused AS (DELETE FROM antiphon.blobs WHERE seq = old.blob AND files = 0 RETURNING key)
    INSERT INTO antiphon.unused_blobs (key) SELECT key FROM unused;
    RETURN NULL;
END
$$;
CREATE TRIGGER file_blob_removed AFTER DELETE ON file_blobs
FOR EACH ROW EXECUTE FUNCTION drop_file_blob();

-- Records the key of a blob as unused when its response is deleted or gets another blob.
CREATE FUNCTION drop_response_blob() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.unused_blobs (key) VALUES (old.blob) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER response_blob_removed AFTER DELETE ON responses
FOR EACH ROW WHEN (old.blob IS NOT NULL) EXECUTE FUNCTION drop_response_blob();
CREATE TRIGGER response_blob_changed AFTER UPDATE ON responses
FOR EACH ROW WHEN (old.blob IS NOT NULL AND new.blob IS DISTINCT FROM old.blob)
EXECUTE FUNCTION drop_response_blob();

CREATE FUNCTION forget_in_vector_stores() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM antiphon.vector_files WHERE id = old.id
    AND store IN (SELECT seq FROM antiphon.vector_stores WHERE tenant = old.tenant);
    RETURN NULL;
END
$$;
CREATE TRIGGER file_removed AFTER DELETE ON files
FOR EACH ROW EXECUTE FUNCTION forget_in_vector_stores();

CREATE TABLE vector_batches (
    store BIGINT NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (store, id)
);

-- indexed: the text for the full-text index. It differs from the column text only if the text
-- contains a script without spaces between words, such as Chinese. NULL: both are the same.
CREATE TABLE chunks (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL,
    file BIGINT NOT NULL REFERENCES vector_files (seq) ON DELETE CASCADE,
    start BIGINT NOT NULL,
    text TEXT NOT NULL,
    indexed TEXT,
    words TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', coalesce(indexed, text))) STORED
);
CREATE INDEX chunks_by_file ON chunks (file);
CREATE INDEX chunks_by_words ON chunks USING gin (words);

-- The vectors are in a table of their own, so that a query for all vectors does not read the texts.
CREATE TABLE chunk_vectors (
    chunk BIGINT PRIMARY KEY REFERENCES chunks (seq) ON DELETE CASCADE,
    store BIGINT NOT NULL,
    file BIGINT NOT NULL,
    model TEXT NOT NULL,
    vector BYTEA NOT NULL
);
CREATE INDEX chunk_vectors_by_store ON chunk_vectors (store, model, chunk);
ALTER TABLE chunk_vectors ALTER COLUMN vector SET STORAGE EXTERNAL;

-- One row for each request. A sweep later adds the row to the sum of its minute.
CREATE TABLE usage_rows (
    id TEXT PRIMARY KEY,
    start BIGINT NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    api_key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests BIGINT NOT NULL,
    failed_requests BIGINT NOT NULL,
    cancelled_requests BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    tool_calls BIGINT NOT NULL,
    latency_ms BIGINT NOT NULL
);
CREATE INDEX usage_rows_by_start ON usage_rows (start);
