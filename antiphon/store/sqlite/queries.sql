-- insert
INSERT INTO responses
    (tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
     expires_at, times)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO NOTHING

-- replace
UPDATE responses SET
    parent = ?3, created_at = ?4, live = 1, bytes = ?5, body = ?6, input = ?7, output = ?8,
    base = ?9, tokens = ?10, fingerprint = ?11, expires_at = ?12, times = ?13
WHERE tenant = ?1 AND id = ?2

-- save_items
INSERT OR IGNORE INTO items (tenant, id, response) SELECT ?, value, ? FROM json_each(?)

-- save_summary
INSERT INTO summaries
    (seq, tenant, status, model, parent, conversation, background, failed, tools, text, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (seq) DO UPDATE SET
    status = excluded.status, model = excluded.model, parent = excluded.parent,
    conversation = excluded.conversation, background = excluded.background,
    failed = excluded.failed, tools = excluded.tools, text = excluded.text, body = excluded.body

-- summaries_newest | summaries_oldest
SELECT s.body FROM summaries AS s WHERE s.tenant = ?1
AND (?2 IS NULL OR s.status = ?2)
AND (?3 IS NULL OR s.model = ?3)
AND (?4 IS NULL OR s.parent = ?4)
AND (?5 IS NULL OR s.conversation = ?5)
AND (?6 IS NULL OR s.background = ?6)
AND (?7 IS NULL OR s.failed = ?7)
AND (?8 IS NULL OR instr(s.tools, ?8))
AND (?9 IS NULL OR instr(s.text, ?9))
AND s.seq {< | >} coalesce(?10, {9223372036854775807 | -1})
ORDER BY s.seq {DESC | ASC} LIMIT ?11

-- item
SELECT r.input, r.output FROM items AS i JOIN responses AS r ON r.seq = i.response
WHERE i.tenant = ? AND i.id = ? AND r.live = 1 ORDER BY r.seq DESC LIMIT 1

-- mark_deleted
UPDATE responses SET live = 0 WHERE seq = ? AND live = 1

-- unneeded_response
SELECT bytes, tenant, parent FROM responses WHERE seq = ? AND live = 0 AND NOT EXISTS (
    SELECT 1 FROM responses AS child
    WHERE child.tenant = responses.tenant AND child.parent = responses.id
)

-- drop_response
DELETE FROM responses WHERE seq = ?

-- outdated
WITH RECURSIVE tenants (name) AS (
    SELECT min(tenant) FROM responses INDEXED BY responses_of_tenant WHERE live = 1
    UNION ALL
    SELECT (
        SELECT min(tenant) FROM responses INDEXED BY responses_of_tenant
        WHERE live = 1 AND tenant > name
    ) FROM tenants WHERE name IS NOT NULL
)
SELECT r.seq FROM tenants
JOIN responses AS r INDEXED BY responses_of_tenant ON r.tenant = name AND r.live = 1
WHERE r.created_at < ? AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.tenant = r.tenant AND runs.id = r.id AND runs.ended_at IS NULL
) LIMIT ?

-- begin_run
INSERT INTO runs (tenant, id, model, conversation, api_key, by_name, start_by)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- add_job
INSERT INTO jobs (run, request, prompt) VALUES (?, ?, ?)

-- run
SELECT seq, epoch, next, ended_at, owner, steering_count FROM runs WHERE tenant = ? AND id = ?

-- unended_runs
SELECT seq, id, model, by_name, owner, start_by FROM runs WHERE ended_at IS NULL AND tenant = ?
ORDER BY start_by, seq

-- drop_start_by
UPDATE runs SET start_by = 0 WHERE ended_at IS NULL AND start_by > 0 AND start_by <= ?

-- all_unended_runs
SELECT id, model, by_name, owner FROM runs WHERE ended_at IS NULL

-- owned_runs
SELECT tenant, id, owner FROM runs WHERE ended_at IS NULL AND owner IS NOT NULL

-- queued_tenants
WITH RECURSIVE queued (tenant) AS (
    SELECT min(tenant) FROM runs WHERE ended_at IS NULL
    UNION ALL
    SELECT (SELECT min(tenant) FROM runs WHERE ended_at IS NULL AND tenant > queued.tenant)
    FROM queued WHERE queued.tenant IS NOT NULL
)
SELECT tenant FROM queued WHERE tenant IS NOT NULL

-- take_over_run
UPDATE runs SET owner = ?, epoch = epoch + 1, attempts = attempts + 1 WHERE seq = ?

-- claim
SELECT r.tenant, r.id, r.model, j.request, j.prompt, r.epoch, r.attempts, r.seq
FROM runs AS r JOIN jobs AS j ON j.run = r.seq WHERE r.seq = ?

-- release_runs
UPDATE runs SET owner = NULL, attempts = max(0, attempts - 1) WHERE owner = ? AND ended_at IS NULL

-- add_large_batch
INSERT INTO batches (run, first, count, lines, tokens, at)
VALUES (?, ?, ?, zeroblob(?), zeroblob(?), ?)

-- advance_run
UPDATE runs SET next = ?, attempts = 0 WHERE seq = ?

-- end_run
UPDATE runs SET ended_at = 0, owner = NULL, steering = NULL WHERE seq = ?

-- drop_job
DELETE FROM jobs WHERE run = ?

-- mark_run_deleted
UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -1, owner = NULL
WHERE tenant = ? AND id = ?

-- mark_run_of_deleted
UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -1, owner = NULL
WHERE (tenant, id) = (SELECT tenant, id FROM responses WHERE seq = ?)

-- events
-- For a large batch, the column of the lines is NULL. The caller then reads the lines separately,
-- by the rowid of the batch.
SELECT r.ended_at IS NOT NULL, b.first, b.count, b.rowid, iif(length(b.lines) <= ?, b.lines, NULL)
FROM runs AS r LEFT JOIN batches AS b ON b.run = r.seq AND b.first + b.count > ? AND b.first >= (
    SELECT coalesce(max(first), 0) FROM batches WHERE run = r.seq AND first <= ?
)
WHERE r.tenant = ? AND r.id = ? ORDER BY b.first

-- drop_deleted_batches
DELETE FROM batches WHERE rowid IN (
    SELECT b.rowid FROM (SELECT seq FROM runs WHERE ended_at BETWEEN ? AND -1) AS dead
    CROSS JOIN batches AS b ON b.run = dead.seq LIMIT ?
)

-- unknown_blobs
SELECT value FROM json_each(?)
WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE key = value)
AND NOT EXISTS (SELECT 1 FROM unused_blobs WHERE key = value)

-- search_chunks
SELECT c.seq, f.id, -bm25(chunk_words, 0.0, 1.0) AS score
FROM vector_stores AS s CROSS JOIN chunk_words
JOIN chunks AS c ON c.seq = chunk_words.rowid JOIN vector_files AS f ON f.seq = c.file
WHERE s.tenant = ? AND s.id = ?
AND chunk_words MATCH 'store : "' || s.seq || '" AND text : (' || ? || ')'
AND f.id IN (SELECT value FROM json_each(?))
ORDER BY score DESC, c.seq LIMIT ?

-- roll_up_usage_rows | roll_up_usage_sums
INSERT INTO usage_sums SELECT ?1, start - start % ?1, kind, tenant, api_key, model,
    sum(requests), sum(failed_requests), sum(cancelled_requests), sum(input_tokens),
    sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), sum(tool_calls),
    sum(latency_ms)
FROM (
    SELECT * FROM {usage_rows | usage_sums} WHERE start < ?2 { | AND width = ?3}
    ORDER BY start, {id | kind, tenant, api_key, model} LIMIT {?3 | ?4}
)
GROUP BY 1, 2, 3, 4, 5, 6
ON CONFLICT (width, start, kind, tenant, api_key, model) DO UPDATE SET
    requests = usage_sums.requests + excluded.requests,
    failed_requests = usage_sums.failed_requests + excluded.failed_requests,
    cancelled_requests = usage_sums.cancelled_requests + excluded.cancelled_requests,
    input_tokens = usage_sums.input_tokens + excluded.input_tokens,
    cached_tokens = usage_sums.cached_tokens + excluded.cached_tokens,
    output_tokens = usage_sums.output_tokens + excluded.output_tokens,
    reasoning_tokens = usage_sums.reasoning_tokens + excluded.reasoning_tokens,
    tool_calls = usage_sums.tool_calls + excluded.tool_calls,
    latency_ms = usage_sums.latency_ms + excluded.latency_ms

-- drop_usage_rows | drop_usage_sums
-- Deletes the rows that roll_up_usage_rows or roll_up_usage_sums has read with the same arguments.
DELETE FROM {usage_rows | usage_sums} WHERE {(start, id) | rowid} IN (
    SELECT {start, id FROM usage_rows | rowid FROM usage_sums} WHERE start < ?2 { | AND width = ?3}
    ORDER BY start, {id | kind, tenant, api_key, model} LIMIT {?3 | ?4}
)

-- drop_tenant_jobs
-- The first of the steps that delete a tenant: see deletion_steps.py. Each step changes few rows.
DELETE FROM jobs WHERE run IN (
    SELECT r.seq FROM runs AS r JOIN jobs AS j ON j.run = r.seq WHERE r.tenant = ? LIMIT ?
)

-- drop_tenant_runs
-- As in mark_run_deleted, runs are only renamed. A sweep deletes their events later.
UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -1, owner = NULL
WHERE seq IN (SELECT seq FROM runs WHERE tenant = ? LIMIT ?)

-- heartbeat
INSERT INTO owners (name, heard_at) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET heard_at = excluded.heard_at

-- live_owners
SELECT name FROM owners WHERE heard_at > ?

-- forget_owner
DELETE FROM owners WHERE name = ?

-- forget_owners
DELETE FROM owners

-- forget_locks
DELETE FROM locks

-- restore_locks
INSERT INTO locks (tenant, conversation, holder, owner)
SELECT tenant, conversation, id, '' FROM runs WHERE ended_at IS NULL AND conversation IS NOT NULL

-- forget_reservations
DELETE FROM reservations

-- lock_holder
SELECT holder, owner FROM locks WHERE tenant = ? AND conversation = ?

-- put_lock
INSERT INTO locks (tenant, conversation, holder, owner) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, conversation) DO UPDATE SET holder = excluded.holder, owner = excluded.owner

-- transfer_locks
UPDATE locks SET owner = ? WHERE tenant = ? AND holder = ?

-- release_lock
DELETE FROM locks WHERE tenant = ? AND conversation = ? AND holder = ? AND NOT EXISTS (
    SELECT 1 FROM runs
    WHERE runs.tenant = locks.tenant AND runs.id = locks.holder AND runs.ended_at IS NULL
)

-- release_locks
DELETE FROM locks WHERE owner = ? AND NOT EXISTS (
    SELECT 1 FROM runs
    WHERE runs.tenant = locks.tenant AND runs.id = locks.holder AND runs.ended_at IS NULL
)

-- put_reservation
INSERT INTO reservations (tenant, id, owner) VALUES (?, ?, ?)
ON CONFLICT (tenant, id) DO UPDATE SET owner = excluded.owner

-- drop_dead_reservations
DELETE FROM reservations WHERE tenant = ? AND NOT EXISTS (
    SELECT 1 FROM owners WHERE owners.name = reservations.owner AND owners.heard_at > ?
)

-- has_room
-- Whether a tenant would have at most ?3 responses and reservations if response ?2 had one, too, and
-- has less than ?4 bytes of responses.
SELECT (?3 IS NULL OR coalesce(max(responses), 0) + (
    SELECT count(*) FROM reservations AS r WHERE r.tenant = ?1 AND r.id <> ?2 AND NOT EXISTS (
        SELECT 1 FROM responses AS s WHERE s.tenant = ?1 AND s.id = r.id AND s.live = 1
    )
) + (NOT EXISTS (
    SELECT 1 FROM responses AS own WHERE own.tenant = ?1 AND own.id = ?2 AND own.live = 1
)) <= ?3) AND (?4 IS NULL OR coalesce(max(bytes), 0) < ?4)
FROM response_totals WHERE tenant = ?1

-- forget_shared_values
DELETE FROM named_values WHERE tenant = '' AND name IN ('containers', 'rates')
