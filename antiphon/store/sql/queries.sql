-- stored_row
SELECT seq FROM responses WHERE tenant = $1 AND id = $2

-- loadable_row
-- The condition live::int = 1, here and in other look-ups of responses, prevents PostgreSQL's planner
-- from using the partial indexes, whose condition is "live". Otherwise, a generic plan that was made
-- while the table was empty might use such an index. It would then read all responses of the tenant.
SELECT seq FROM responses WHERE tenant = $1 AND id = $2 AND live::int = 1

-- load
SELECT body, input, output, base, tokens, fingerprint, times, blob FROM responses
WHERE tenant = $1 AND id = $2 AND live::int = 1

-- chain
WITH RECURSIVE chain (depth, seq, tenant, parent) AS (
    SELECT 0, seq, tenant, parent FROM responses WHERE tenant = $1 AND id = $2 AND live::int = 1
    UNION ALL
    SELECT chain.depth + 1, r.seq, r.tenant, r.parent
    FROM chain JOIN responses AS r ON r.tenant = chain.tenant AND r.id = chain.parent
)
SELECT r.body, r.input, r.output, r.base, r.tokens, r.fingerprint, r.times, r.blob
FROM chain JOIN responses AS r ON r.seq = chain.seq ORDER BY chain.depth DESC

-- tenant_totals
SELECT tenant, responses, bytes FROM response_totals

-- stored_totals
SELECT coalesce(sum(responses), 0)::bigint, coalesce(sum(bytes), 0)::bigint
FROM response_totals WHERE tenant = $1

-- usage
SELECT
    coalesce((SELECT responses FROM response_totals WHERE tenant = $1), 0),
    coalesce((SELECT bytes FROM response_totals WHERE tenant = $1), 0),
    (SELECT count(*) FROM runs WHERE tenant = $1 AND ended_at IS NULL AND owner IS NULL),
    (SELECT count(*) FROM runs WHERE tenant = $1 AND ended_at IS NULL AND owner IS NOT NULL),
    (SELECT count(*) FROM files WHERE tenant = $1),
    (SELECT coalesce(sum(bytes), 0) FROM files WHERE tenant = $1)::bigint,
    (SELECT count(*) FROM vector_stores WHERE tenant = $1)

-- release_reservation
DELETE FROM reservations WHERE tenant = $1 AND id = $2 AND owner = $3

-- put_conversation
INSERT INTO conversations (tenant, id, body) VALUES ($1, $2, $3)
ON CONFLICT (tenant, id) DO UPDATE SET body = excluded.body

-- conversation
SELECT body FROM conversations WHERE tenant = $1 AND id = $2

-- conversations
SELECT body FROM conversations
WHERE tenant = $1 AND seq > coalesce((
    SELECT seq FROM conversations WHERE tenant = $1 AND id = $2::text
), CASE WHEN $2::text IS NULL THEN 0 END)
ORDER BY seq LIMIT $3

-- lock_conversation_row
SELECT seq FROM conversations WHERE tenant = $1 AND id = $2 FOR UPDATE

-- drop_conversation
DELETE FROM conversations WHERE tenant = $1 AND id = $2

-- add_item
INSERT INTO conversation_items (conversation, tenant, id, kind, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- conversation_items
SELECT i.body FROM conversation_items AS i JOIN conversations AS c ON c.seq = i.conversation
WHERE c.tenant = $1 AND c.id = $2 ORDER BY i.position

-- newest_items | oldest_items
-- The conversation and the cursors are looked up in subqueries. So the planner can read the page
-- from an index, in order and without a sort.
SELECT body FROM conversation_items
WHERE conversation = (SELECT seq FROM conversations WHERE tenant = $1 AND id = $2)
AND position {< | >} coalesce((
    SELECT a.position FROM conversation_items AS a JOIN conversations AS c ON c.seq = a.conversation
    WHERE c.tenant = $1 AND c.id = $2 AND a.id = $3
), CASE WHEN $3::text IS NULL THEN {9223372036854775807 | 0} END)
AND position {> | <} coalesce((
    SELECT u.position FROM conversation_items AS u JOIN conversations AS c ON c.seq = u.conversation
    WHERE c.tenant = $1 AND c.id = $2 AND u.id = $4
), CASE WHEN $4::text IS NULL THEN {0 | 9223372036854775807} END)
ORDER BY position {DESC | ASC} LIMIT $5

-- newest_items_of_kinds | oldest_items_of_kinds
SELECT body FROM conversation_items /* sqlite: INDEXED BY conversation_items_by_kind */
WHERE conversation = (SELECT seq FROM conversations WHERE tenant = $1 AND id = $2)
AND position {< | >} coalesce((
    SELECT a.position FROM conversation_items AS a JOIN conversations AS c ON c.seq = a.conversation
    WHERE c.tenant = $1 AND c.id = $2 AND a.id = $3
), CASE WHEN $3::text IS NULL THEN {9223372036854775807 | 0} END)
AND position {> | <} coalesce((
    SELECT u.position FROM conversation_items AS u JOIN conversations AS c ON c.seq = u.conversation
    WHERE c.tenant = $1 AND c.id = $2 AND u.id = $4
), CASE WHEN $4::text IS NULL THEN {0 | 9223372036854775807} END)
AND kind = ANY ($6::text[]) ORDER BY position {DESC | ASC} LIMIT $5

-- items_by_id
SELECT body FROM conversation_items /* sqlite: INDEXED BY conversation_items_by_id */
WHERE conversation = (SELECT seq FROM conversations WHERE tenant = $1 AND id = $2)
AND id = ANY ($3::text[]) ORDER BY position

-- conversation_item
SELECT body FROM conversation_items WHERE tenant = $1 AND id = $2 ORDER BY position LIMIT 1

-- remove_item
DELETE FROM conversation_items WHERE conversation = $1 AND id = $2

-- oldest_of
SELECT seq, bytes FROM responses AS r WHERE tenant = $1 AND live AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.tenant = r.tenant AND runs.id = r.id AND num_nulls(runs.ended_at) = 1
) ORDER BY created_at, seq LIMIT $2

-- expired_responses
SELECT seq FROM responses WHERE live AND expires_at <= $1 LIMIT $2

-- set_end_times
UPDATE runs SET ended_at = $1 WHERE seq = ANY (ARRAY(
    SELECT seq FROM runs WHERE ended_at = 0 LIMIT $2 FOR UPDATE SKIP LOCKED
))

-- mark_runs_deleted
-- Sets ended_at of expired runs to the negative of the current time. In PostgreSQL, the runs then wait
-- for their partition to be dropped.
UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -$2::bigint
WHERE seq = ANY (ARRAY(
    SELECT seq FROM runs WHERE ended_at > 0 AND ended_at < $1 LIMIT $3 FOR UPDATE SKIP LOCKED
))

-- drop_deleted_runs
DELETE FROM runs WHERE seq = ANY (ARRAY(
    SELECT seq FROM runs AS dead WHERE ended_at BETWEEN $1 AND -1
    AND NOT EXISTS (SELECT 1 FROM batches WHERE run = dead.seq) ORDER BY ended_at LIMIT $2
))

-- count_unended_runs
SELECT count(*) FROM runs
WHERE tenant = $1 AND ended_at IS NULL AND NOT by_name AND ($2::text IS NULL OR api_key = $2)

-- steering
-- num_nulls(ended_at) = 1 means that a run has not ended, here and in other queries. With the
-- condition ended_at IS NULL, PostgreSQL's planner might read all unended runs, if its statistics show
-- only few.
SELECT steering_count, steering FROM runs
WHERE tenant = $1 AND id = $2 AND num_nulls(ended_at) = 1

-- steered_runs
SELECT id FROM runs WHERE owner = $1 AND ended_at IS NULL AND steering_count > 0

-- steer
UPDATE runs SET steering = $4, steering_count = steering_count + 1
WHERE tenant = $1 AND id = $2 AND num_nulls(ended_at) = 1 AND steering_count = $3

-- add_batch
INSERT INTO batches (run, first, count, lines, tokens, at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING

-- history
SELECT b.first, b.count, b.lines, b.tokens, b.at
FROM batches AS b JOIN runs AS r ON r.seq = b.run
WHERE r.tenant = $1 AND r.id = $2 ORDER BY b.first

-- drop_locks
DELETE FROM locks WHERE tenant = $1 AND holder = $2

-- add_webhook
INSERT INTO webhooks (id, body, due_at, tenant, endpoint) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- due_webhooks
SELECT id, body, attempts + 1, tenant, endpoint FROM webhooks
WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED

-- count_webhook_attempt
UPDATE webhooks SET due_at = $2, attempts = attempts + 1 WHERE id = $1

-- postpone_webhook
UPDATE webhooks SET due_at = $2 WHERE id = $1

-- drop_webhook
DELETE FROM webhooks WHERE id = $1

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

-- put_vector_store
INSERT INTO vector_stores (tenant, id, expires_at, body) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, id) DO UPDATE SET expires_at = excluded.expires_at, body = excluded.body

-- vector_store
SELECT body FROM vector_stores WHERE tenant = $1 AND id = $2

-- count_other_vector_stores
SELECT count(*) FROM vector_stores WHERE tenant = $1 AND id <> $2

-- lock_vector_store
-- Locks the vector store against deletion until the end of the transaction.
SELECT seq FROM vector_stores WHERE tenant = $1 AND id = $2 FOR KEY SHARE

-- vector_stores
SELECT body FROM vector_stores WHERE tenant = $1 ORDER BY seq

-- drop_vector_store
DELETE FROM vector_stores WHERE tenant = $1 AND id = $2

-- vector_usage
SELECT f.status, count(*), sum(f.bytes)::bigint
FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
WHERE s.tenant = $1 AND s.id = $2 AND ($3::text IS NULL OR f.batch = $3) GROUP BY f.status

-- drop_vector_files_of
DELETE FROM vector_files WHERE store = $1 AND id = ANY ($2::text[])

-- put_vector_file
INSERT INTO vector_files (store, id, batch, status, bytes, body) VALUES ($1, $2, $3, $4, $5, $6)

-- put_vector_batch
INSERT INTO vector_batches (store, id, body) VALUES ($1, $2, $3)

-- lock_vector_file_in_progress
SELECT seq FROM vector_files WHERE store = $1 AND id = $2 AND status = 'in_progress' FOR UPDATE

-- change_vector_file
UPDATE vector_files SET status = $2, bytes = $3, body = $4 WHERE seq = $1

-- label_vector_file
UPDATE vector_files SET body = $4 WHERE store = $1 AND id = $2 AND status = $3

-- put_chunk
INSERT INTO chunks (store, file, start, text, indexed) VALUES ($1, $2, $3, $4, $5)
RETURNING seq

-- put_vector
INSERT INTO chunk_vectors (chunk, store, file, model, vector) VALUES ($1, $2, $3, $4, $5)

-- vector_file
SELECT f.body FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
WHERE s.tenant = $1 AND s.id = $2 AND f.id = $3

-- vector_files
SELECT f.body FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
WHERE s.tenant = $1 AND s.id = $2 ORDER BY f.seq

-- newest_vector_files | oldest_vector_files
SELECT body FROM vector_files /* sqlite: INDEXED BY vector_files_in_order */
WHERE store = (SELECT seq FROM vector_stores WHERE tenant = $1 AND id = $2)
AND seq {< | >} coalesce((
    SELECT a.seq FROM vector_files AS a JOIN vector_stores AS s ON s.seq = a.store
    WHERE s.tenant = $1 AND s.id = $2 AND a.id = $3
), CASE WHEN $3::text IS NULL THEN {9223372036854775807 | 0} END)
AND seq {> | <} coalesce((
    SELECT u.seq FROM vector_files AS u JOIN vector_stores AS s ON s.seq = u.store
    WHERE s.tenant = $1 AND s.id = $2 AND u.id = $4
), CASE WHEN $4::text IS NULL THEN {0 | 9223372036854775807} END)
AND ($5::text IS NULL OR status = $5) AND ($6::text IS NULL OR batch = $6)
ORDER BY seq {DESC | ASC} LIMIT $7

-- drop_vector_file
DELETE FROM vector_files WHERE id = $3
AND store = (SELECT seq FROM vector_stores WHERE tenant = $1 AND id = $2)

-- vector_batch
SELECT b.body FROM vector_batches AS b JOIN vector_stores AS s ON s.seq = b.store
WHERE s.tenant = $1 AND s.id = $2 AND b.id = $3

-- chunks
SELECT c.start, c.text FROM chunks AS c
JOIN vector_files AS f ON f.seq = c.file JOIN vector_stores AS s ON s.seq = f.store
WHERE s.tenant = $1 AND s.id = $2 AND f.id = $3 ORDER BY c.seq

-- chunk_texts
SELECT c.seq, c.text FROM chunks AS c JOIN vector_stores AS s ON s.seq = c.store
WHERE s.tenant = $1 AND s.id = $2 AND c.seq = ANY ($3::bigint[])

-- vector_mark
SELECT coalesce(max(v.chunk), 0), count(*)
FROM chunk_vectors AS v JOIN vector_stores AS s ON s.seq = v.store
WHERE s.tenant = $1 AND s.id = $2 AND v.model = $3

-- vector_matrix
SELECT v.chunk, f.id, v.vector
FROM chunk_vectors AS v JOIN vector_stores AS s ON s.seq = v.store
JOIN vector_files AS f ON f.seq = v.file
WHERE s.tenant = $1 AND s.id = $2 AND v.model = $3 ORDER BY v.chunk

-- unfinished_vector_files
SELECT s.tenant, s.id, f.id FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
WHERE f.status = 'in_progress' ORDER BY f.seq

-- expire_vector_files
DELETE FROM vector_files WHERE seq = ANY (ARRAY(
    SELECT f.seq FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
    WHERE s.expires_at <= $1 LIMIT $2
))

-- drop_tenant_vector_files
DELETE FROM vector_files WHERE seq = ANY (ARRAY(
    SELECT f.seq FROM vector_files AS f JOIN vector_stores AS s ON s.seq = f.store
    WHERE s.tenant = $1 LIMIT $2
))

-- drop_tenant_vector_stores
DELETE FROM vector_stores WHERE seq = ANY (ARRAY(
    SELECT seq FROM vector_stores WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_responses
-- One of the steps that delete a tenant: see deletion_steps.py. Each step changes few rows.
DELETE FROM responses WHERE seq = ANY (ARRAY(
    SELECT seq FROM responses WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_items
DELETE FROM conversation_items WHERE position = ANY (ARRAY(
    SELECT position FROM conversation_items WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_conversations
DELETE FROM conversations WHERE seq = ANY (ARRAY(
    SELECT seq FROM conversations WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_files
-- Files of pending uploads belong to tenant names that begin with this tenant's name and U+001F.
DELETE FROM files WHERE seq = ANY (ARRAY(
    SELECT seq FROM files
    WHERE tenant = $1 OR substr(tenant, 1, length($1) + 1) = $1 || chr(31) LIMIT $2
))

-- drop_tenant_journal
DELETE FROM journal WHERE tenant = $1 AND key = ANY (ARRAY(
    SELECT key FROM journal WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_values
DELETE FROM named_values WHERE tenant = $1 AND name = ANY (ARRAY(
    SELECT name FROM named_values WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_webhooks
DELETE FROM webhooks WHERE id = ANY (ARRAY(
    SELECT id FROM webhooks WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_locks
DELETE FROM locks WHERE tenant = $1 AND conversation = ANY (ARRAY(
    SELECT conversation FROM locks WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_reservations
DELETE FROM reservations WHERE tenant = $1 AND id = ANY (ARRAY(
    SELECT id FROM reservations WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_usage_rows
DELETE FROM usage_rows WHERE id = ANY (ARRAY(
    SELECT id FROM usage_rows WHERE tenant = $1 LIMIT $2
))

-- drop_tenant_usage_sums
DELETE FROM usage_sums WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM usage_sums WHERE tenant = $1 LIMIT $2
))
