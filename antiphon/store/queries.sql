-- save
INSERT INTO responses
    (tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO UPDATE SET
    live = 1, bytes = excluded.bytes, body = excluded.body, input = excluded.input,
    output = excluded.output, base = excluded.base, tokens = excluded.tokens,
    fingerprint = excluded.fingerprint
RETURNING seq

-- save_item
INSERT OR IGNORE INTO items (tenant, id, response) VALUES (?, ?, ?)

-- load
SELECT body, input, output, base, tokens, fingerprint FROM responses
WHERE tenant = ? AND id = ? AND live = 1

-- chain
WITH RECURSIVE chain (depth, tenant, parent, body, input, output, base, tokens, fingerprint) AS (
    SELECT 0, tenant, parent, body, input, output, base, tokens, fingerprint FROM responses
    WHERE tenant = ? AND id = ? AND live = 1
    UNION ALL
    SELECT chain.depth + 1, r.tenant, r.parent, r.body, r.input, r.output, r.base, r.tokens,
        r.fingerprint
    FROM chain JOIN responses AS r ON r.tenant = chain.tenant AND r.id = chain.parent
)
SELECT body, input, output, base, tokens, fingerprint FROM chain ORDER BY depth DESC

-- item
SELECT r.input, r.output FROM items AS i JOIN responses AS r ON r.seq = i.response
WHERE i.tenant = ? AND i.id = ? AND r.live = 1 ORDER BY r.seq DESC LIMIT 1

-- bury
UPDATE responses SET live = 0 WHERE tenant = ? AND id = ? AND live = 1 RETURNING seq

-- bury_row
UPDATE responses SET live = 0 WHERE seq = ?

-- free
DELETE FROM responses WHERE seq = ? AND live = 0 AND NOT EXISTS (
    SELECT 1 FROM responses AS child
    WHERE child.tenant = responses.tenant AND child.parent = responses.id
) RETURNING tenant, parent

-- row_of
SELECT seq FROM responses WHERE tenant = ? AND id = ?

-- oldest
SELECT seq, created_at, bytes FROM responses WHERE live = 1 ORDER BY created_at, seq LIMIT ?

-- totals
SELECT live, bytes FROM totals
