-- What a list of responses shows. It is in a table of its own, so that a list does not read the
-- large columns of the responses.
CREATE TABLE summaries (
    seq INTEGER PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    model TEXT NOT NULL,
    parent TEXT,
    conversation TEXT,
    background INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    tools TEXT NOT NULL,
    text TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX summaries_of_tenant ON summaries (tenant, seq);
CREATE TRIGGER responses_unlisted AFTER UPDATE OF live ON responses WHEN new.live = 0 BEGIN
    DELETE FROM summaries WHERE seq = new.seq;
END;
-- Existing responses get summaries without previews, and without the kinds of their tool calls.
INSERT INTO summaries
SELECT seq, tenant, coalesce(json_extract(body, '$.status'), 'completed'), coalesce(json_extract(body, '$.model'), ''),
    parent, json_extract(body, '$.conversation.id'),
    coalesce(json_extract(body, '$.background'), 0), json_extract(body, '$.error') IS NOT NULL, '', '',
    CAST(json_object(
        'id', id, 'created_at', created_at, 'status', coalesce(json_extract(body, '$.status'), 'completed'),
        'model', coalesce(json_extract(body, '$.model'), ''),
        'background', json(iif(json_extract(body, '$.background'), 'true', 'false')),
        'previous_response_id', parent, 'usage', json(json_extract(body, '$.usage')),
        'error', json(json_extract(body, '$.error')), 'conversation', json(json_extract(body, '$.conversation'))
    ) AS BLOB)
FROM (SELECT seq, tenant, id, parent, created_at, CAST(body AS TEXT) AS body FROM responses
    WHERE live = 1) ORDER BY seq;
