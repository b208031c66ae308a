-- value
SELECT content FROM named_values WHERE tenant = $1 AND name = $2

-- locked_value
SELECT content FROM named_values WHERE tenant = $1 AND name = $2 FOR UPDATE

-- create_value
INSERT INTO named_values (tenant, name, content) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING

-- replace_value
UPDATE named_values SET content = $3 WHERE tenant = $1 AND name = $2

-- drop_value
DELETE FROM named_values WHERE tenant = $1 AND name = $2

-- add_audit
INSERT INTO audit (id, at, type, target, actor, actor_tenant, address)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- audit_row
SELECT seq FROM audit WHERE id = $1

-- audit_newest | audit_oldest
SELECT id, at, type, target, actor, actor_tenant, address FROM audit
WHERE ($1::text IS NULL OR type = $1) AND ($2::text IS NULL OR actor = $2)
AND ($3::text IS NULL OR target = $3) AND ($4::bigint IS NULL OR at >= $4)
AND ($5::bigint IS NULL OR at < $5)
AND seq {< | >} coalesce($6::bigint, {9223372036854775807 | -1}) ORDER BY seq {DESC | ASC} LIMIT $7

-- expire_audit
DELETE FROM audit WHERE seq = ANY (ARRAY(
    SELECT seq FROM audit WHERE at < $1 LIMIT $2
))

-- add_usage
INSERT INTO usage_rows VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT DO NOTHING

-- usage_totals
SELECT start - start % $3::bigint AS bucket, CASE WHEN $8::boolean THEN tenant END AS tenant_group,
    CASE WHEN $9::boolean THEN api_key END AS api_key_group,
    CASE WHEN $10::boolean THEN model END AS model_group,
    sum(requests)::bigint, sum(failed_requests)::bigint, sum(cancelled_requests)::bigint,
    sum(input_tokens)::bigint, sum(cached_tokens)::bigint, sum(output_tokens)::bigint,
    sum(reasoning_tokens)::bigint, sum(tool_calls)::bigint, sum(latency_ms)::bigint
FROM (
    SELECT
        start, kind, tenant, api_key, model, requests, failed_requests, cancelled_requests,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, tool_calls, latency_ms
    FROM usage_rows WHERE start >= $1 AND start < $2
    UNION ALL
    SELECT
        start, kind, tenant, api_key, model, requests, failed_requests, cancelled_requests,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, tool_calls, latency_ms
    FROM usage_sums WHERE width IN (60, 3600, 86400) AND start >= $1 AND start < $2
) AS u WHERE kind = $4
AND ($5::text[] IS NULL OR tenant = ANY ($5))
AND ($6::text[] IS NULL OR api_key = ANY ($6))
AND ($7::text[] IS NULL OR model = ANY ($7))
GROUP BY 1, 2, 3, 4
ORDER BY bucket

-- expire_usage
DELETE FROM usage_sums WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM usage_sums WHERE width IN (60, 3600, 86400) AND start < $1 LIMIT $2
))

-- begin_entry
-- The entry of a call belongs to the unended run of its response. $7: whether it is about an approval.
INSERT INTO journal (tenant, key, response, attempt, intent, begun_at, run)
SELECT $1, $2, $3, $4, $5, $6, r.seq FROM (SELECT 1) AS one LEFT JOIN runs AS r
ON NOT $7::boolean AND r.tenant = $1 AND r.id = $3 AND num_nulls(r.ended_at) = 1
WHERE $7::boolean OR r.seq IS NOT NULL
ON CONFLICT DO NOTHING

-- locked_result
SELECT result FROM journal WHERE tenant = $1 AND key = $2 FOR UPDATE

-- settle_entry
UPDATE journal SET result = $3 WHERE tenant = $1 AND key = $2

-- journal_entries
SELECT key, response, attempt, intent, result, run IS NULL FROM journal
WHERE tenant = $1 AND key = ANY ($2::text[])

-- expire_approvals
DELETE FROM journal WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM journal WHERE run IS NULL AND begun_at < $1 LIMIT $2
))

-- put_file
INSERT INTO files (tenant, id, purpose, bytes, expires_at, body) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING seq

-- put_content
INSERT INTO contents (file, content) VALUES ($1, $2)

-- file_totals
SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM files WHERE tenant = $1

-- file
SELECT body FROM files WHERE tenant = $1 AND id = $2

-- file_row
SELECT seq FROM files WHERE tenant = $1 AND id = $2

-- lock_file
-- Locks the file against deletion until the end of the transaction.
SELECT seq FROM files WHERE tenant = $1 AND id = $2 FOR KEY SHARE

-- content
-- The content itself, or the blob that has it.
SELECT c.content, b.key, b.sha256, b.bytes FROM files AS f
LEFT JOIN contents AS c ON c.file = f.seq
LEFT JOIN file_blobs AS l ON l.file = f.seq LEFT JOIN blobs AS b ON b.seq = l.blob
WHERE f.tenant = $1 AND f.id = $2

-- put_blob
INSERT INTO blobs (tenant, sha256, bytes, key, files) VALUES ($1, $2, $3, $4, 1)
ON CONFLICT (tenant, sha256) DO UPDATE SET files = blobs.files + 1

-- blob
SELECT seq, key FROM blobs WHERE tenant = $1 AND sha256 = $2

-- put_file_blob
INSERT INTO file_blobs (file, blob) VALUES ($1, $2)

-- put_unused_blob
INSERT INTO unused_blobs (key) VALUES ($1)

-- drop_content
DELETE FROM contents WHERE file = $1

-- drop_file_blob
DELETE FROM file_blobs WHERE file = $1 AND blob = (SELECT seq FROM blobs WHERE key = $2)

-- move_blob
UPDATE blobs SET key = $3 WHERE key = $2 AND seq = (SELECT blob FROM file_blobs WHERE file = $1)

-- files_in_store
SELECT f.body, f.seq, f.tenant FROM files AS f JOIN contents AS c ON c.file = f.seq
WHERE f.seq > $1 ORDER BY f.seq LIMIT $2

-- files_in_blobs
SELECT f.body, f.seq, f.tenant, b.key, b.sha256, b.bytes FROM files AS f
JOIN file_blobs AS l ON l.file = f.seq JOIN blobs AS b ON b.seq = l.blob
WHERE f.seq > $1 ORDER BY f.seq LIMIT $2

-- unused_blobs
SELECT key FROM unused_blobs WHERE key > '' ORDER BY key LIMIT $1

-- drop_unused_blobs
DELETE FROM unused_blobs WHERE key = ANY ($1::text[])

-- files_newest | files_oldest
SELECT body FROM files WHERE tenant = $1 AND ($2::text IS NULL OR purpose = $2)
AND (expires_at IS NULL OR expires_at > $3)
AND seq {< | >} coalesce($4::bigint, {9223372036854775807 | -1}) ORDER BY seq {DESC | ASC} LIMIT $5

-- drop_file
DELETE FROM files WHERE tenant = $1 AND id = $2

-- expire_files
DELETE FROM files WHERE seq = ANY (ARRAY(
    SELECT seq FROM files WHERE expires_at <= $1 LIMIT $2
))
