-- One row for each request. A sweep later adds the row to the sum of its minute.
CREATE TABLE usage_rows (
    id TEXT PRIMARY KEY,
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
    latency_ms INTEGER NOT NULL
);
CREATE INDEX usage_rows_by_start ON usage_rows (start);
-- Each row is the sum of the requests of width seconds, beginning at start.
CREATE TABLE usage_sums (
    width INTEGER NOT NULL,
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
    PRIMARY KEY (width, start, kind, tenant, api_key, model)
);
