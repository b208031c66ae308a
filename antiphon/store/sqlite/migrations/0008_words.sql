-- indexed: the text for the full-text index. It differs from the column text only if the text
-- contains a script without spaces between words, such as Chinese. NULL: both are the same.
ALTER TABLE chunks ADD COLUMN indexed TEXT;
DROP TRIGGER chunk_added;
DROP TRIGGER chunk_removed;
CREATE TRIGGER chunk_added AFTER INSERT ON chunks BEGIN
    INSERT INTO chunk_words (rowid, store, text)
    VALUES (new.seq, new.store, coalesce(new.indexed, new.text));
END;
CREATE TRIGGER chunk_removed AFTER DELETE ON chunks BEGIN
    INSERT INTO chunk_words (chunk_words, rowid, store, text)
    VALUES ('delete', old.seq, old.store, coalesce(old.indexed, old.text));
END;
