-- What a list of responses shows, without the large columns beside it.
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
-- Of earlier responses there are no previews, and their calls are not known.
INSERT INTO summaries
SELECT seq, tenant, coalesce(body ->> '$.status', 'completed'), coalesce(body ->> '$.model', ''),
    parent, body ->> '$.conversation.id',
    coalesce(body ->> '$.background', 0), body ->> '$.error' IS NOT NULL, '', '',
    CAST(json_object(
        'id', id, 'created_at', created_at, 'status', coalesce(body ->> '$.status', 'completed'),
        'model', coalesce(body ->> '$.model', ''),
        'background', json(iif(body ->> '$.background', 'true', 'false')),
        'previous_response_id', parent, 'usage', json(body -> '$.usage'),
        'error', json(body -> '$.error'), 'conversation', json(body -> '$.conversation')
    ) AS BLOB)
FROM (SELECT seq, tenant, id, parent, created_at, CAST(body AS TEXT) AS body FROM responses
    WHERE live = 1) ORDER BY seq;
