-- save
INSERT INTO responses
    (tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
     expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant, id) DO UPDATE SET
    parent = excluded.parent, created_at = excluded.created_at, live = TRUE,
    bytes = excluded.bytes, body = excluded.body, input = excluded.input,
    output = excluded.output, base = excluded.base, tokens = excluded.tokens,
    fingerprint = excluded.fingerprint, expires_at = excluded.expires_at
RETURNING seq

-- forget_items
DELETE FROM items WHERE response = $1

-- save_items
INSERT INTO items (tenant, id, response) SELECT $1, unnest($2::text[]), $3
ON CONFLICT DO NOTHING

-- load
SELECT body, input, output, base, tokens, fingerprint FROM responses
WHERE tenant = $1 AND id = $2 AND live

-- chain
WITH RECURSIVE chain (depth, seq, tenant, parent) AS (
    SELECT 0, seq, tenant, parent FROM responses WHERE tenant = $1 AND id = $2 AND live
    UNION ALL
    SELECT chain.depth + 1, r.seq, r.tenant, r.parent
    FROM chain JOIN responses AS r ON r.tenant = chain.tenant AND r.id = chain.parent
)
SELECT r.body, r.input, r.output, r.base, r.tokens, r.fingerprint
FROM chain JOIN responses AS r ON r.seq = chain.seq ORDER BY chain.depth DESC

-- item
SELECT r.input, r.output FROM items AS i JOIN responses AS r ON r.seq = i.response
WHERE i.tenant = $1 AND i.id = $2 AND r.live ORDER BY r.seq DESC LIMIT 1

-- bury
UPDATE responses SET live = FALSE WHERE tenant = $1 AND id = $2 AND live RETURNING seq

-- bury_row
UPDATE responses SET live = FALSE WHERE seq = $1 AND live

-- free
DELETE FROM responses AS r WHERE r.seq = $1 AND NOT r.live AND NOT EXISTS (
    SELECT 1 FROM responses AS child WHERE child.tenant = r.tenant AND child.parent = r.id
) RETURNING r.bytes, (
    SELECT p.seq FROM responses AS p WHERE p.tenant = r.tenant AND p.id = r.parent
)

-- oldest
SELECT seq, created_at FROM responses AS r WHERE live AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.tenant = r.tenant AND runs.id = r.id AND runs.ended_at IS NULL
) ORDER BY created_at, seq LIMIT $1

-- lapsed
SELECT seq FROM responses WHERE live AND expires_at <= $1 LIMIT $2

-- totals
SELECT count(*) FILTER (WHERE live), coalesce(sum(bytes), 0)::bigint FROM responses

-- drop_run_of
DELETE FROM runs USING responses AS r
WHERE r.seq = $1 AND runs.tenant = r.tenant AND runs.id = r.id

-- put_conversation
INSERT INTO conversations (tenant, id, body) VALUES ($1, $2, $3)
ON CONFLICT (tenant, id) DO UPDATE SET body = excluded.body

-- conversation
SELECT body FROM conversations WHERE tenant = $1 AND id = $2

-- conversation_row
SELECT seq FROM conversations WHERE tenant = $1 AND id = $2 FOR UPDATE

-- drop_conversation
DELETE FROM conversations WHERE tenant = $1 AND id = $2 RETURNING seq

-- add_items
INSERT INTO conversation_items (conversation, tenant, id, body)
SELECT $1, $2, g.id, g.body
FROM unnest($3::text[], $4::bytea[]) WITH ORDINALITY AS g (id, body, at) ORDER BY g.at
ON CONFLICT DO NOTHING

-- conversation_items
SELECT i.body FROM conversation_items AS i JOIN conversations AS c ON c.seq = i.conversation
WHERE c.tenant = $1 AND c.id = $2 ORDER BY i.position

-- conversation_item
SELECT body FROM conversation_items WHERE tenant = $1 AND id = $2 ORDER BY position LIMIT 1

-- remove_item
DELETE FROM conversation_items WHERE conversation = $1 AND id = $2 RETURNING position

-- put_secret
INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- secret
SELECT value FROM secrets WHERE name = $1

-- begin_run
INSERT INTO runs (tenant, id, model, request, prompt) VALUES ($1, $2, $3, $4, $5) RETURNING seq

-- add_batch
INSERT INTO batches (run, first, count, lines, tokens) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- claim
WITH free AS (
    SELECT seq, owner AS had FROM runs
    WHERE ended_at IS NULL AND model = ANY ($2::text[]) AND (
        owner IS NULL
        OR (owner <> $1 AND beat_at <= now() - $4::float8 * interval '1 second')
    )
    ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE runs SET owner = $1, beat_at = now(), epoch = epoch + 1, attempts = attempts + 1
    FROM free WHERE runs.seq = free.seq
    RETURNING runs.seq, tenant, id, model, request, prompt, epoch, attempts, free.had
), held AS (
    UPDATE holds SET owner = $1, beat_at = now() FROM taken WHERE holds.holder = taken.id
)
SELECT tenant, id, model, request, prompt, epoch, attempts, $1 AS owner, had
FROM taken ORDER BY seq

-- beat
WITH held AS (UPDATE holds SET beat_at = now() WHERE owner = $1)
UPDATE runs SET beat_at = now() WHERE owner = $1 AND ended_at IS NULL

-- release
WITH let_go AS (
    DELETE FROM holds WHERE owner = $1 AND NOT EXISTS (
        SELECT 1 FROM runs WHERE runs.id = holds.holder AND runs.ended_at IS NULL
    )
)
UPDATE runs SET owner = NULL WHERE owner = $1 AND ended_at IS NULL

-- seize
WITH it AS (
    SELECT seq, owner AS had FROM runs
    WHERE tenant = $1 AND id = $2 AND ended_at IS NULL FOR UPDATE
)
UPDATE runs SET owner = '', beat_at = now(), epoch = epoch + 1, attempts = attempts + 1
FROM it WHERE runs.seq = it.seq
RETURNING tenant, id, model, request, prompt, epoch, attempts, '' AS owner, it.had

-- append
WITH given AS (
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::int[], $4::int[], $5::int[], $6::bytea[], $7::bytea[]
    ) AS g (tenant, id, epoch, first, count, lines, tokens)
), mine AS (
    SELECT DISTINCT r.seq, r.tenant, r.id, r.attempts FROM given AS g JOIN runs AS r
    ON r.tenant = g.tenant AND r.id = g.id AND r.epoch = g.epoch AND r.ended_at IS NULL
), kept AS (
    INSERT INTO batches (run, first, count, lines, tokens)
    SELECT m.seq, g.first, g.count, g.lines, g.tokens
    FROM given AS g JOIN mine AS m ON m.tenant = g.tenant AND m.id = g.id
    ON CONFLICT DO NOTHING
), spoken AS (
    -- never waits: whoever takes a run away holds its row, and waits for us
    UPDATE runs SET attempts = 0 WHERE seq IN (
        SELECT r.seq FROM runs AS r WHERE r.seq IN (SELECT seq FROM mine WHERE attempts > 0)
        FOR UPDATE SKIP LOCKED
    )
)
SELECT tenant, id, seq FROM mine

-- append_alone
SELECT pg_advisory_xact_lock_shared($1, hashtext(o)) FROM unnest($2::text[]) AS g (o)

-- take_from
SELECT pg_advisory_xact_lock($1, hashtext(o)) FROM unnest($2::text[]) AS g (o) ORDER BY o

-- end_run
UPDATE runs SET ended_at = 0, owner = NULL
WHERE tenant = $1 AND id = $2 AND epoch = $3 AND ended_at IS NULL RETURNING seq

-- forget_hold
DELETE FROM holds WHERE holder = $1

-- history
SELECT b.first, b.count, b.lines, b.tokens
FROM batches AS b JOIN runs AS r ON r.seq = b.run
WHERE r.tenant = $1 AND r.id = $2 ORDER BY b.first

-- run
SELECT r.seq, coalesce(b.first + b.count, 0), r.ended_at IS NOT NULL
FROM runs AS r LEFT JOIN LATERAL (
    SELECT first, count FROM batches WHERE run = r.seq ORDER BY first DESC LIMIT 1
) AS b ON TRUE
WHERE r.tenant = $1 AND r.id = $2

-- runs
SELECT r.tenant, r.id, r.seq, coalesce(b.first + b.count, 0)
FROM runs AS r JOIN unnest($1::text[], $2::text[]) AS g (tenant, id)
ON r.tenant = g.tenant AND r.id = g.id
LEFT JOIN LATERAL (
    SELECT first, count FROM batches WHERE run = r.seq ORDER BY first DESC LIMIT 1
) AS b ON TRUE

-- events
SELECT b.first, b.count, b.lines, ''::bytea FROM batches AS b
WHERE b.run = $1 AND b.first >= (
    SELECT coalesce(max(first), 0) FROM batches WHERE run = $1 AND first <= $2
) ORDER BY b.first LIMIT $3

-- news
SELECT b.run, b.first, b.count, b.lines
FROM unnest($1::bigint[], $2::int[]) AS g (run, after)
JOIN batches AS b ON b.run = g.run AND b.first > g.after
ORDER BY b.run, b.first

-- hold
INSERT INTO holds (tenant, conversation, holder, owner) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, conversation) DO UPDATE
    SET holder = excluded.holder, owner = excluded.owner, beat_at = now()
    WHERE holds.holder = excluded.holder
    OR holds.beat_at <= now() - $5::float8 * interval '1 second'
RETURNING holder

-- let_go
DELETE FROM holds WHERE tenant = $1 AND conversation = $2 AND holder = $3

-- see_ended
UPDATE runs SET ended_at = $1 WHERE ended_at = 0

-- expire_runs
DELETE FROM runs WHERE ended_at < $1

-- notify
SELECT pg_notify('antiphon', $1)
