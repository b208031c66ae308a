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
