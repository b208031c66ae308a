-- Responses.
--
-- Each index and each foreign key makes every save of a response slower. So there are only those
-- that a query needs, and triggers delete the rows that belong to a response.

CREATE TABLE responses (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    created_at INTEGER NOT NULL,
    live INTEGER NOT NULL DEFAULT 1,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL,
    input BLOB NOT NULL,
    output BLOB NOT NULL,
    base INTEGER,
    tokens BLOB,
    fingerprint TEXT,
    expires_at INTEGER,
    -- When the items of the response were made.
    times BLOB
);
CREATE INDEX responses_by_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL AND live = 1;
-- Responses that are too old are found in this index, one tenant after another.
CREATE INDEX responses_of_tenant ON responses (tenant, created_at) WHERE live = 1;

CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response INTEGER NOT NULL,
    PRIMARY KEY (tenant, id, response)
) WITHOUT ROWID;

-- What a list of responses shows. It is in a table of its own, so that a list does not read the
-- large columns of the responses.
CREATE TABLE summaries (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    model TEXT NOT NULL,
    parent TEXT,
    conversation TEXT,
    background INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    tools TEXT NOT NULL,
    text TEXT NOT NULL,
    body BLOB NOT NULL
);

-- When a response is saved again, its old items are deleted. The items of the new version are then
-- inserted.
CREATE TRIGGER responses_replaced AFTER UPDATE OF output ON responses BEGIN
    DELETE FROM items WHERE response = new.seq;
END;
CREATE TRIGGER responses_unlisted AFTER UPDATE OF live ON responses WHEN new.live = 0 BEGIN
    DELETE FROM summaries WHERE seq = new.seq;
END;
CREATE TRIGGER responses_freed AFTER DELETE ON responses BEGIN
    DELETE FROM items WHERE response = old.seq;
    DELETE FROM summaries WHERE seq = old.seq;
END;

-- The number of responses of each tenant, and their bytes. A deleted response that a later one
-- continues still counts with its bytes.
CREATE TABLE response_totals (
    tenant TEXT PRIMARY KEY,
    responses INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO response_totals (tenant, responses, bytes) VALUES (new.tenant, new.live, new.bytes)
    ON CONFLICT (tenant) DO UPDATE SET responses = responses + excluded.responses,
        bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER response_changed AFTER UPDATE OF live, bytes ON responses
WHEN new.live <> old.live OR new.bytes <> old.bytes BEGIN
    UPDATE response_totals SET responses = responses + new.live - old.live,
        bytes = bytes + new.bytes - old.bytes
    WHERE tenant = new.tenant;
END;
CREATE TRIGGER response_removed AFTER DELETE ON responses BEGIN
    UPDATE response_totals SET responses = responses - old.live, bytes = bytes - old.bytes
    WHERE tenant = old.tenant;
    DELETE FROM response_totals WHERE tenant = old.tenant AND responses = 0 AND bytes = 0;
END;

-- Runs.

CREATE TABLE runs (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    -- The name of the API key that created the run. A key may have only a limited number of unended
    -- runs.
    api_key TEXT NOT NULL DEFAULT '',
    -- Whether only claims that name the run find it.
    by_name INTEGER NOT NULL DEFAULT 0,
    -- The conversation that the run keeps locked until its end, even if the server restarts.
    conversation TEXT,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    -- How many times the run was claimed since events were last appended to it.
    attempts INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0,
    -- The input with which clients steer the run, and how many times it was changed.
    steering BLOB,
    steering_count INTEGER NOT NULL DEFAULT 0,
    -- Until this time, the run waits behind all runs that have 0 here. The first heartbeat after this
    -- time sets it to 0.
    start_by INTEGER NOT NULL DEFAULT 0,
    -- NULL until the run ends. Then 0 until the next sweep, which sets it to the Unix time of that
    -- sweep.
    ended_at INTEGER
);
CREATE INDEX runs_owned ON runs (tenant, owner) WHERE ended_at IS NULL AND owner IS NOT NULL;

-- The requests of runs are in a table of their own, because SQLite always writes a whole row, and
-- every append changes the row of the run.
CREATE TABLE jobs (
    run INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,
    request BLOB NOT NULL,
    prompt BLOB NOT NULL
);

CREATE TABLE batches (
    run INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    -- When the events were made.
    at REAL,
    lines BLOB NOT NULL,
    tokens BLOB NOT NULL
);
CREATE UNIQUE INDEX batches_by_run ON batches (run, first);

-- The state of the processes that use the database. All times are seconds of the machine's monotonic
-- clock. A server deletes the records of earlier processes when it starts.

CREATE TABLE owners (name TEXT PRIMARY KEY, heard_at REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE locks (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    holder TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation)
) WITHOUT ROWID;

-- Reservations: responses that are being generated. They count against the quota of their tenant
-- before they are saved.
CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- {shared}

-- The files of a tenant and their bytes are counted in this index alone, without reading the rows.
CREATE INDEX files_of_tenant ON files (tenant, bytes);

-- The keys of blobs that no file uses any more. A key is removed when the content of its blob is
-- deleted.
CREATE TABLE unused_blobs (key TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TRIGGER file_blob_removed AFTER DELETE ON file_blobs BEGIN
    UPDATE blobs SET files = files - 1 WHERE seq = old.blob;
    INSERT INTO unused_blobs (key) SELECT key FROM blobs WHERE seq = old.blob AND files = 0;
    DELETE FROM blobs WHERE seq = old.blob AND files = 0;
END;
CREATE INDEX vector_stores_expiring ON vector_stores (expires_at);

CREATE TRIGGER file_removed AFTER DELETE ON files BEGIN
    DELETE FROM vector_files WHERE id = old.id
    AND store IN (SELECT seq FROM vector_stores WHERE tenant = old.tenant);
END;

CREATE TABLE vector_batches (
    store INTEGER NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (store, id)
) WITHOUT ROWID;

-- AUTOINCREMENT: the numbers of deleted chunks are never used again. So a number that a cache holds
-- cannot mean another chunk later.
--
-- indexed: the text for the full-text index. It differs from the column text only if the text
-- contains a script without spaces between words, such as Chinese. NULL: both are the same.
CREATE TABLE chunks (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    store INTEGER NOT NULL,
    file INTEGER NOT NULL REFERENCES vector_files (seq) ON DELETE CASCADE,
    start INTEGER NOT NULL,
    text TEXT NOT NULL,
    indexed TEXT
);
CREATE INDEX chunks_by_file ON chunks (file);

-- The vectors are in a table of their own, so that a query for all vectors does not read the texts.
CREATE TABLE chunk_vectors (
    chunk INTEGER PRIMARY KEY REFERENCES chunks (seq) ON DELETE CASCADE,
    store INTEGER NOT NULL,
    file INTEGER NOT NULL,
    model TEXT NOT NULL,
    vector BLOB NOT NULL
);
CREATE INDEX chunk_vectors_by_store ON chunk_vectors (store, model, chunk);

-- The number of the vector store is indexed like a word. So a search in one vector store does not
-- read the chunks of other vector stores.
CREATE VIRTUAL TABLE chunk_words USING fts5 (
    store, text, content='chunks', content_rowid='seq', tokenize='porter unicode61'
);
CREATE TRIGGER chunk_added AFTER INSERT ON chunks BEGIN
    INSERT INTO chunk_words (rowid, store, text)
    VALUES (new.seq, new.store, coalesce(new.indexed, new.text));
END;
CREATE TRIGGER chunk_removed AFTER DELETE ON chunks BEGIN
    INSERT INTO chunk_words (chunk_words, rowid, store, text)
    VALUES ('delete', old.seq, old.store, coalesce(old.indexed, old.text));
END;

-- One row for each request. A sweep later adds the row to the sum of its minute. The primary key
-- begins with the time, and the table is stored in the order of this key. So rows of the same time
-- are next to each other, and no second index is needed.
CREATE TABLE usage_rows (
    id TEXT NOT NULL,
    start INTEGER NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    api_key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    failed_requests INTEGER NOT NULL,
    cancelled_requests INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    latency_ms INTEGER NOT NULL,
    PRIMARY KEY (start, id)
) WITHOUT ROWID;
