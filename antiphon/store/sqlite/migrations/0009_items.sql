-- What a response is kept with again takes the place of its items.
CREATE TRIGGER responses_kept_again AFTER UPDATE OF output ON responses BEGIN
    DELETE FROM items WHERE response = new.seq;
END;
