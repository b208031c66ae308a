-- The key of the blob, outside of the database, that holds the input, the output and the tokens of a
-- large response. The column input then says how to read it.
ALTER TABLE responses ADD COLUMN blob TEXT;
CREATE INDEX responses_by_blob ON responses (blob) WHERE blob IS NOT NULL;

CREATE OR REPLACE FUNCTION count_removed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, -(count(*) FILTER (WHERE live)), -sum(bytes) FROM removed GROUP BY tenant;
    INSERT INTO antiphon.unused_blobs (key) SELECT blob FROM removed WHERE blob IS NOT NULL;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION count_changed_responses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.response_changes (tenant, responses, bytes)
    SELECT tenant, sum(responses), sum(bytes) FROM (
        SELECT tenant, live::int AS responses, bytes FROM added
        UNION ALL SELECT tenant, -live::int, -bytes FROM removed
    ) AS changes GROUP BY tenant HAVING sum(responses) <> 0 OR sum(bytes) <> 0;
    INSERT INTO antiphon.unused_blobs (key) SELECT blob FROM removed WHERE blob IS NOT NULL
    EXCEPT SELECT blob FROM added;
    RETURN NULL;
END
$$;
