-- When a response is saved again, its old items are deleted. The items of the new version are then
-- inserted.
CREATE TRIGGER responses_kept_again AFTER UPDATE OF output ON responses BEGIN
    DELETE FROM items WHERE response = new.seq;
END;
