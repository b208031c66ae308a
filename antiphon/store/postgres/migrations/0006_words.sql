-- indexed: the text for the full-text index. It differs from the column text only if the text
-- contains a script without spaces between words, such as Chinese. NULL: both are the same.
ALTER TABLE chunks ADD COLUMN indexed TEXT;
ALTER TABLE chunks DROP COLUMN words;
ALTER TABLE chunks ADD COLUMN words TSVECTOR
    GENERATED ALWAYS AS (to_tsvector('english', coalesce(indexed, text))) STORED;
CREATE INDEX chunks_by_words ON chunks USING gin (words);
