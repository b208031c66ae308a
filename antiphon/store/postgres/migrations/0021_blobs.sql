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

-- The keys of blobs that no file uses any more. A key is removed when the content of its blob is
-- deleted.
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
