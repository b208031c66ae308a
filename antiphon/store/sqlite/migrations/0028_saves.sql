-- Each index and each foreign key makes every save of a response slower. So this migration removes
-- those that no query needs.

-- Responses that are too old are found in the index responses_of_tenant, one tenant after another.
-- So the index by age is not needed.
DROP INDEX responses_by_age;

-- WITHOUT ROWID: the rows are stored in the index of the primary key, so there is no second B-tree.
ALTER TABLE usage_rows RENAME TO usage_rows_before;
DROP INDEX usage_rows_by_start;
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
) WITHOUT ROWID;
CREATE INDEX usage_rows_by_start ON usage_rows (start);
INSERT INTO usage_rows SELECT * FROM usage_rows_before;
DROP TABLE usage_rows_before;

-- A trigger deletes the items and the summary of a deleted response. A foreign key could do the
-- same, but would make inserts slower: SQLite would look up the response of each new row, and
-- prepare to undo each insert.
DROP TRIGGER responses_kept_again;
DROP TRIGGER responses_unlisted;

ALTER TABLE items RENAME TO items_before;
DROP INDEX items_by_response;
CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response INTEGER NOT NULL,
    PRIMARY KEY (tenant, id, response)
) WITHOUT ROWID;
INSERT INTO items SELECT * FROM items_before;
CREATE INDEX items_by_response ON items (response);
DROP TABLE items_before;

ALTER TABLE summaries RENAME TO summaries_before;
DROP INDEX summaries_of_tenant;
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
INSERT INTO summaries SELECT * FROM summaries_before;
CREATE INDEX summaries_of_tenant ON summaries (tenant, seq);
DROP TABLE summaries_before;

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
