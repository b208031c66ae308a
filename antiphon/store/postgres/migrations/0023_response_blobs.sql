-- blob: the key of the blob that holds the input, the output and the tokens of a large response,
-- outside of the database. The column input then holds a reference to the blob. NULL: there is no
-- blob.
ALTER TABLE responses ADD COLUMN blob TEXT;
CREATE INDEX responses_by_blob ON responses (blob) WHERE blob IS NOT NULL;

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
