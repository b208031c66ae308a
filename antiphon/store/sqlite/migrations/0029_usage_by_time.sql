-- The primary key begins with the time, and the table is stored in the order of this key. So rows
-- of the same time are next to each other, and no second index is needed.
ALTER TABLE usage_rows RENAME TO usage_rows_before;
DROP INDEX usage_rows_by_start;
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
INSERT INTO usage_rows SELECT * FROM usage_rows_before;
DROP TABLE usage_rows_before;
