-- What a list of responses shows. It is in a table of its own, so that a list does not read the
-- large columns of the responses.
CREATE TABLE summaries (
    seq BIGINT PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    model TEXT NOT NULL,
    parent TEXT,
    conversation TEXT,
    background BOOLEAN NOT NULL,
    failed BOOLEAN NOT NULL,
    tools TEXT NOT NULL,
    text TEXT NOT NULL,
    body BYTEA NOT NULL
);
CREATE INDEX summaries_of_tenant ON summaries (tenant, seq);
-- Existing responses get summaries without previews, and without the kinds of their tool calls.
INSERT INTO summaries
SELECT seq, tenant, coalesce(b ->> 'status', 'completed'), coalesce(b ->> 'model', ''), parent, b -> 'conversation' ->> 'id',
    coalesce((b ->> 'background')::boolean, FALSE), b ->> 'error' IS NOT NULL, '', '',
    convert_to(json_build_object(
        'id', id, 'created_at', created_at, 'status', coalesce(b ->> 'status', 'completed'), 'model', coalesce(b ->> 'model', ''),
        'background', coalesce((b ->> 'background')::boolean, FALSE),
        'previous_response_id', parent, 'usage', b -> 'usage', 'error', b -> 'error',
        'conversation', b -> 'conversation'
    )::text, 'UTF8')
FROM (SELECT *, convert_from(body, 'UTF8')::json AS b FROM responses WHERE live) AS r;
