-- How many responses each tenant has and how many bytes they take: its row of response_totals and its
-- rows of response_changes. A statement that changes responses adds rows, so that no two wait for each
-- other; from time to time they are added to the totals.
CREATE TABLE response_totals (
    tenant TEXT PRIMARY KEY,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE response_changes (
    tenant TEXT NOT NULL,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX response_changes_of_tenant ON response_changes (tenant);

LOCK TABLE responses IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO response_totals
SELECT tenant, count(*) FILTER (WHERE live), sum(bytes) FROM responses GROUP BY tenant;

-- For each row: a trigger for each statement would take three times as long for a single response.
CREATE FUNCTION count_added_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    VALUES (new.tenant, new.live::int, new.bytes);
    RETURN NULL;
END
$$;
CREATE TRIGGER response_added AFTER INSERT ON responses
FOR EACH ROW EXECUTE FUNCTION count_added_response();

CREATE FUNCTION count_changed_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    VALUES (new.tenant, new.live::int - old.live::int, new.bytes - old.bytes);
    RETURN NULL;
END
$$;
CREATE TRIGGER response_changed AFTER UPDATE ON responses
FOR EACH ROW WHEN (new.live <> old.live OR new.bytes <> old.bytes)
EXECUTE FUNCTION count_changed_response();

-- Many are deleted at a time.
CREATE FUNCTION count_removed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, -(count(*) FILTER (WHERE live)), -sum(bytes) FROM removed GROUP BY tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER responses_removed AFTER DELETE ON responses REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION count_removed_responses();

-- Earlier, the bytes were added up from these indexes.
DROP INDEX responses_buried;
