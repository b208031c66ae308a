-- The tables and indexes that are equal in all databases. The scripts of PostgreSQL and SQLite contain
-- this one.

CREATE UNIQUE INDEX responses_by_id ON responses (tenant, id);
CREATE INDEX responses_by_parent ON responses (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX items_by_response ON items (response);
CREATE INDEX summaries_of_tenant ON summaries (tenant, seq);

-- Conversations.

CREATE TABLE conversations (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX conversations_by_id ON conversations (tenant, id);

-- kind: the role of a message, or the type of any other item. With the last two indexes, a query
-- reads only the items of one page, or only the items of some kinds.
CREATE TABLE conversation_items (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation BIGINT NOT NULL REFERENCES conversations (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX conversation_items_by_id ON conversation_items (conversation, id);
CREATE INDEX conversation_items_of_tenant ON conversation_items (tenant, id);
CREATE INDEX conversation_items_in_order ON conversation_items (conversation, position);
CREATE INDEX conversation_items_by_kind ON conversation_items (conversation, kind, position);
CREATE UNIQUE INDEX runs_by_id ON runs (tenant, id);
CREATE INDEX runs_unended ON runs (seq) WHERE ended_at IS NULL;
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_active ON runs (tenant, api_key) WHERE ended_at IS NULL;
-- Indexes for fair claims: the next run that is claimed belongs to the tenant with the fewest
-- running runs.
CREATE INDEX runs_by_tenant ON runs (tenant, start_by, seq) WHERE ended_at IS NULL;
CREATE INDEX runs_deferred ON runs (start_by) WHERE ended_at IS NULL AND start_by > 0;
CREATE INDEX locks_by_holder ON locks (tenant, holder);

-- The webhooks that are still to be delivered. endpoint: the webhook endpoint of the tenant, or '' for
-- the URL in the settings.
CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    body BYTEA NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL
);
CREATE INDEX webhooks_by_time ON webhooks (due_at);

-- The journal of server-side tool calls. run: the run that the call belongs to. NULL: the entry is
-- about an approval.
CREATE TABLE journal (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    response TEXT NOT NULL,
    attempt TEXT NOT NULL,
    intent BYTEA NOT NULL,
    result BYTEA,
    begun_at BIGINT NOT NULL,
    run BIGINT REFERENCES runs (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX journal_by_run ON journal (run) WHERE run IS NOT NULL;
CREATE INDEX journal_approvals ON journal (begun_at) WHERE run IS NULL;

-- Files.

CREATE TABLE files (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    expires_at BIGINT,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX files_by_id ON files (tenant, id);
CREATE INDEX files_in_order ON files (tenant, seq);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE contents (
    file BIGINT PRIMARY KEY REFERENCES files (seq) ON DELETE CASCADE,
    content BYTEA NOT NULL
);

-- Blobs: contents of files that are stored outside of the database. Files of one tenant with the
-- same content share one blob. files: the number of these files.
CREATE TABLE blobs (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    key TEXT NOT NULL,
    files BIGINT NOT NULL
);
CREATE UNIQUE INDEX blobs_by_content ON blobs (tenant, sha256);
CREATE UNIQUE INDEX blobs_by_key ON blobs (key);

CREATE TABLE file_blobs (
    file BIGINT PRIMARY KEY REFERENCES files (seq) ON DELETE CASCADE,
    blob BIGINT NOT NULL
);

-- Vector stores.

CREATE TABLE vector_stores (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    expires_at BIGINT,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX vector_stores_by_id ON vector_stores (tenant, id);

CREATE TABLE vector_files (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    batch TEXT,
    status TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX vector_files_by_id ON vector_files (store, id);
CREATE INDEX vector_files_everywhere ON vector_files (id);
CREATE INDEX vector_files_unfinished ON vector_files (seq) WHERE status = 'in_progress';
-- With this index, a query for a page of the files of a vector store reads only this page.
CREATE INDEX vector_files_in_order ON vector_files (store, seq);

-- Administration.

-- Named values, such as the API keys and the record of the last sweep. The tenant is empty if a value
-- belongs to the whole server.
CREATE TABLE named_values (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (tenant, name)
);

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

-- Each row is the sum of the requests of width seconds, beginning at start.
CREATE TABLE usage_sums (
    width BIGINT NOT NULL,
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
    latency_ms BIGINT NOT NULL,
    PRIMARY KEY (width, start, kind, tenant, api_key, model)
);
