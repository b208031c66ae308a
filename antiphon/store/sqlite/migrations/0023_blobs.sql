-- Blobs: contents of files that are stored outside of the database. Files of one tenant with the
-- same content share one blob. files: the number of these files.
CREATE TABLE blobs (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    key TEXT NOT NULL,
    files INTEGER NOT NULL
);
CREATE UNIQUE INDEX blobs_by_content ON blobs (tenant, sha256);
CREATE UNIQUE INDEX blobs_by_key ON blobs (key);

CREATE TABLE file_blobs (
    file INTEGER PRIMARY KEY REFERENCES files (seq) ON DELETE CASCADE,
    blob INTEGER NOT NULL
);

-- The keys of blobs that no file uses any more. A key is removed when the content of its blob is
-- deleted.
CREATE TABLE unused_blobs (key TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TRIGGER file_blob_removed AFTER DELETE ON file_blobs BEGIN
    UPDATE blobs SET files = files - 1 WHERE seq = old.blob;
    INSERT INTO unused_blobs (key) SELECT key FROM blobs WHERE seq = old.blob AND files = 0;
    DELETE FROM blobs WHERE seq = old.blob AND files = 0;
END;
