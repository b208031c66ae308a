-- The text as it is indexed, where that is not the text: of scripts without blanks.
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
