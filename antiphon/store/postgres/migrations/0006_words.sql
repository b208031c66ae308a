-- The text as it is indexed, where that is not the text: of scripts without blanks.
ALTER TABLE chunks ADD COLUMN indexed TEXT;
ALTER TABLE chunks DROP COLUMN words;
ALTER TABLE chunks ADD COLUMN words TSVECTOR
    GENERATED ALWAYS AS (to_tsvector('english', coalesce(indexed, text))) STORED;
CREATE INDEX chunks_by_words ON chunks USING gin (words);
