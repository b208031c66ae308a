-- How many responses each tenant has and how many bytes they take: its row of response_totals and its
-- rows of response_changes. A statement that changes responses adds rows, so that no two wait for each
-- other; from time to time they are added to the totals.
CREATE TABLE response_totals (
    tenant TEXT PRIMARY KEY,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE response_changes (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    responses BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX response_changes_of_tenant ON response_changes (tenant);

LOCK TABLE responses IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO response_totals
SELECT tenant, count(*) FILTER (WHERE live), sum(bytes) FROM responses GROUP BY tenant;

CREATE FUNCTION count_added_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, count(*) FILTER (WHERE live), sum(bytes) FROM added GROUP BY tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER responses_added AFTER INSERT ON responses REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION count_added_responses();

CREATE FUNCTION count_removed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, -(count(*) FILTER (WHERE live)), -sum(bytes) FROM removed GROUP BY tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER responses_removed AFTER DELETE ON responses REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION count_removed_responses();

CREATE FUNCTION count_changed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, sum(responses), sum(bytes) FROM (
        SELECT tenant, live::int AS responses, bytes FROM added
        UNION ALL SELECT tenant, -live::int, -bytes FROM removed
    ) AS changes GROUP BY tenant HAVING sum(responses) <> 0 OR sum(bytes) <> 0;
    RETURN NULL;
END
$$;
CREATE TRIGGER responses_changed AFTER UPDATE ON responses
REFERENCING NEW TABLE AS added OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION count_changed_responses();

-- Earlier, the bytes were added up from these indexes.
DROP INDEX responses_buried;
