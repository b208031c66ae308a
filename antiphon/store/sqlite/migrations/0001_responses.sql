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
    fingerprint TEXT
);
CREATE UNIQUE INDEX responses_by_id ON responses (tenant, id);
CREATE INDEX responses_by_parent ON responses (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX responses_by_age ON responses (created_at, seq) WHERE live = 1;

CREATE TABLE items (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response INTEGER NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, id, response)
) WITHOUT ROWID;
CREATE INDEX items_by_response ON items (response);

CREATE TABLE totals (live INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER responses_kept AFTER INSERT ON responses BEGIN
    UPDATE totals SET live = live + new.live, bytes = bytes + new.bytes;
END;
CREATE TRIGGER responses_changed AFTER UPDATE OF live, bytes ON responses BEGIN
    UPDATE totals SET live = live + new.live - old.live, bytes = bytes + new.bytes - old.bytes;
END;
CREATE TRIGGER responses_freed AFTER DELETE ON responses BEGIN
    UPDATE totals SET live = live - old.live, bytes = bytes - old.bytes;
END;
