-- save
-- Stores a response with its summary, its usage and the items that other requests can refer to, in one
-- statement. Old items are deleted only if the response was already stored.
WITH saved AS (
    INSERT INTO responses
        (tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
         expires_at, times, blob)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $25)
    ON CONFLICT (tenant, id) DO UPDATE SET
        parent = excluded.parent, created_at = excluded.created_at, live = TRUE,
        bytes = excluded.bytes, body = excluded.body, input = excluded.input,
        output = excluded.output, base = excluded.base, tokens = excluded.tokens,
        fingerprint = excluded.fingerprint, expires_at = excluded.expires_at,
        times = excluded.times, blob = excluded.blob
    RETURNING seq, tenant, xmax <> 0 AS was_there
), summarized AS (
    INSERT INTO summaries
        (seq, tenant, status, model, parent, conversation, background, failed, tools, text, body)
    SELECT seq, tenant, $14::text, $15::text, $16::text, $17::text, $18::boolean, $19::boolean,
        $20::text, $21::text, $22::bytea FROM saved
    ON CONFLICT (seq) DO UPDATE SET
        status = excluded.status, model = excluded.model, parent = excluded.parent,
        conversation = excluded.conversation, background = excluded.background,
        failed = excluded.failed, tools = excluded.tools, text = excluded.text,
        body = excluded.body
), used AS (
    INSERT INTO usage_rows SELECT * FROM json_populate_recordset(NULL::usage_rows, $24::json)
    ON CONFLICT DO NOTHING
), dropped AS (
    DELETE FROM items USING saved
    WHERE saved.was_there AND items.response = saved.seq AND items.id <> ALL ($23::text[])
)
INSERT INTO items (tenant, id, response)
SELECT saved.tenant, i.id, saved.seq FROM saved CROSS JOIN unnest($23::text[]) AS i (id)
ON CONFLICT DO NOTHING

-- save_many
-- Like "save", but for several responses: most arguments are lists with one value for each response.
-- $23 and $24 are lists with one value for each item: its id, and the place of its response in the
-- other lists.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[],
        $8::bytea[], $9::int[], $10::bytea[], $11::text[], $12::bigint[], $13::bytea[],
        $14::text[], $15::text[], $16::text[], $17::text[], $18::boolean[], $19::boolean[],
        $20::text[], $21::text[], $22::bytea[], $26::text[]
    ) WITH ORDINALITY AS g (
        tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
        expires_at, times, status, model, summary_parent, conversation, background, failed, tools,
        text, summary, blob, place
    )
), saved AS (
    INSERT INTO responses
        (tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
         expires_at, times, blob)
    SELECT
        tenant, id, parent, created_at, bytes, body, input, output, base, tokens, fingerprint,
        expires_at, times, blob
    FROM given ORDER BY place
    ON CONFLICT (tenant, id) DO UPDATE SET
        parent = excluded.parent, created_at = excluded.created_at, live = TRUE,
        bytes = excluded.bytes, body = excluded.body, input = excluded.input,
        output = excluded.output, base = excluded.base, tokens = excluded.tokens,
        fingerprint = excluded.fingerprint, expires_at = excluded.expires_at,
        times = excluded.times, blob = excluded.blob
    RETURNING seq, tenant, id, xmax <> 0 AS was_there
), placed AS MATERIALIZED (
    SELECT s.seq, s.was_there, g.* FROM saved AS s
    JOIN given AS g ON g.tenant = s.tenant AND g.id = s.id
), summarized AS (
    INSERT INTO summaries
        (seq, tenant, status, model, parent, conversation, background, failed, tools, text, body)
    SELECT
        seq, tenant, status, model, summary_parent, conversation, background, failed, tools, text,
        summary
    FROM placed
    ON CONFLICT (seq) DO UPDATE SET
        status = excluded.status, model = excluded.model, parent = excluded.parent,
        conversation = excluded.conversation, background = excluded.background,
        failed = excluded.failed, tools = excluded.tools, text = excluded.text,
        body = excluded.body
), used AS (
    INSERT INTO usage_rows SELECT * FROM json_populate_recordset(NULL::usage_rows, $25::json)
    ON CONFLICT DO NOTHING
), listed AS MATERIALIZED (
    SELECT p.tenant, i.id, p.seq FROM unnest($23::text[], $24::bigint[]) AS i (id, place)
    JOIN placed AS p ON p.place = i.place
), dropped AS (
    DELETE FROM items WHERE response = ANY (ARRAY(SELECT seq FROM placed WHERE was_there))
    AND NOT EXISTS (SELECT FROM listed AS l WHERE l.seq = items.response AND l.id = items.id)
)
INSERT INTO items (tenant, id, response) SELECT tenant, id, seq FROM listed ON CONFLICT DO NOTHING

-- summaries_newest | summaries_oldest
-- Reads up to $12 rows, and returns two columns. The first one is the row number of the last row
-- that was read; NULL if there are no more rows. The second one is the list of the bodies of the
-- rows that match.
WITH looked AS MATERIALIZED (
    SELECT * FROM summaries
    WHERE tenant = $1 AND seq {< | >} coalesce($10::bigint, {9223372036854775807 | -1})
    ORDER BY seq {DESC | ASC} LIMIT $12
)
SELECT (SELECT CASE WHEN count(*) = $12 THEN {min | max}(seq) END FROM looked), ARRAY(
    SELECT s.body FROM looked AS s
    WHERE ($2::text IS NULL OR s.status = $2)
    AND ($3::text IS NULL OR s.model = $3)
    AND ($4::text IS NULL OR s.parent = $4)
    AND ($5::text IS NULL OR s.conversation = $5)
    AND ($6::boolean IS NULL OR s.background = $6)
    AND ($7::boolean IS NULL OR s.failed = $7)
    AND ($8::text IS NULL OR strpos(s.tools, $8) > 0)
    AND ($9::text IS NULL OR strpos(s.text, $9) > 0)
    ORDER BY seq {DESC | ASC} LIMIT $11
)

-- item
SELECT r.input, r.output, r.blob FROM items AS i CROSS JOIN LATERAL (
    SELECT input, output, blob FROM responses WHERE seq = i.response AND live::int = 1 LIMIT 1
) AS r
WHERE i.tenant = $1 AND i.id = $2 ORDER BY i.response DESC LIMIT 1

-- lock_deletions
-- Only one transaction at a time deletes responses. If two transactions deleted the last two children
-- of a response at the same time, neither would see that the response is no longer needed.
SELECT pg_advisory_xact_lock(1634628610)

-- try_lock_sweep
SELECT pg_try_advisory_xact_lock(1634628611)

-- expire
-- Deletes the rows of those responses that have no child. The other responses are only marked as
-- not live. Then deletes the rows of ancestors that are not live and whose last child was deleted.
-- Returns the deleted rows.
--
-- Most of the time is spent on look-ups by id: ids are random, so each look-up reads another page
-- of an index, perhaps from a disk. So the query looks up children only once. If it has found a
-- child of a response in this way, it does not look up the parent of this child.
WITH RECURSIVE batch AS MATERIALIZED (
    SELECT seq, tenant, id, parent FROM responses WHERE seq = ANY ($1::bigint[])
), edges AS MATERIALIZED (
    SELECT child.seq AS child, b.seq, b.parent, count(*) OVER (PARTITION BY b.seq) AS children
    FROM batch AS b CROSS JOIN LATERAL (
        SELECT seq FROM responses WHERE tenant = b.tenant AND parent = b.id
    ) AS child
), gone AS (
    SELECT seq, tenant, parent FROM batch AS b
    WHERE NOT EXISTS (SELECT FROM edges WHERE edges.seq = b.seq)
    UNION ALL
    SELECT coalesce(e.seq, o.seq), gone.tenant,
        CASE WHEN e.seq IS NULL THEN o.parent ELSE e.parent END
    FROM gone LEFT JOIN edges AS e ON e.child = gone.seq
    LEFT JOIN LATERAL (
        SELECT r.seq, r.parent FROM responses AS r
        WHERE e.seq IS NULL AND r.tenant = gone.tenant AND r.id = gone.parent AND r.live::int = 0
        AND NOT EXISTS (
            SELECT FROM responses AS child
            WHERE child.tenant = r.tenant AND child.parent = r.id AND child.seq <> gone.seq
        )
    ) AS o ON TRUE
    WHERE e.children = 1 OR o.seq IS NOT NULL
), marked AS (
    UPDATE responses SET live = FALSE
    WHERE seq = ANY ($1::bigint[]) AND live::int = 1 AND seq NOT IN (SELECT seq FROM gone)
), unlisted AS (
    DELETE FROM summaries WHERE seq = ANY ($1::bigint[])
)
DELETE FROM responses WHERE seq = ANY (ARRAY(SELECT seq FROM gone)) RETURNING tenant, id, parent, bytes

-- unneeded_parents
-- DISTINCT, because several children of a response may be deleted at once.
SELECT DISTINCT r.seq
FROM unnest($1::text[], $2::text[]) AS p (tenant, id)
CROSS JOIN LATERAL (
    SELECT seq, tenant, id FROM responses
    WHERE tenant = p.tenant AND id = p.id AND live::int = 0 LIMIT 1
) AS r
WHERE NOT EXISTS (
    SELECT FROM responses AS child WHERE child.tenant = r.tenant AND child.parent = r.id
)

-- oldest
-- Begins after the last response that was deleted, so the index entries of deleted responses are not
-- read again.
SELECT seq, created_at FROM responses AS r WHERE live AND (created_at, seq) > ($2, $3) AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.tenant = r.tenant AND runs.id = r.id AND num_nulls(runs.ended_at) = 1
) ORDER BY created_at, seq LIMIT $1

-- add_response_changes
WITH old AS (
    DELETE FROM response_changes WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM response_changes ORDER BY tenant LIMIT $1 FOR UPDATE SKIP LOCKED
    )) RETURNING tenant, responses, bytes
), added AS (
    INSERT INTO response_sums
    SELECT tenant, sum(responses), sum(bytes) FROM old GROUP BY tenant ORDER BY tenant
    ON CONFLICT (tenant) DO UPDATE SET responses = response_sums.responses + excluded.responses,
        bytes = response_sums.bytes + excluded.bytes
)
SELECT 1 FROM old

-- drop_empty_sums
DELETE FROM response_sums WHERE responses = 0 AND bytes = 0 AND NOT EXISTS (
    SELECT FROM response_changes AS c WHERE c.tenant = response_sums.tenant
)

-- count_reserved
-- Returns the number of the tenant's responses, and how many there will be besides: one for each
-- reservation, and response $2, if it is not stored yet. The caller runs lock_responses first, in a
-- separate statement. So this statement also sees the reservations that earlier holders of the lock
-- have made. One statement counts responses and reservations, so a response that is saved meanwhile
-- counts only once. If the tenant has many rows in response_changes, some of them are added to
-- response_sums, so that later calls read fewer rows.
WITH many AS (
    SELECT FROM response_changes WHERE tenant = $1 LIMIT 1 OFFSET 100
), old AS (
    DELETE FROM response_changes WHERE EXISTS (SELECT FROM many) AND ctid = ANY (ARRAY(
        SELECT ctid FROM response_changes WHERE tenant = $1 LIMIT 1000 FOR UPDATE SKIP LOCKED
    )) RETURNING responses, bytes
), added AS (
    INSERT INTO response_sums
    SELECT $1, sum(responses), sum(bytes) FROM old HAVING count(*) > 0
    ON CONFLICT (tenant) DO UPDATE SET responses = response_sums.responses + excluded.responses,
        bytes = response_sums.bytes + excluded.bytes
)
SELECT
    coalesce((SELECT responses FROM response_totals WHERE tenant = $1), 0),
    (NOT EXISTS (
        SELECT FROM responses AS own
        WHERE own.tenant = $1 AND own.id = $2 AND own.live::int = 1
    ))::int + (
        SELECT count(*) FROM reservations AS r
        WHERE r.tenant = $1 AND r.id <> $2 AND (r.owner = $3 OR EXISTS (
            SELECT FROM owners
            WHERE name = r.owner AND heard_at > now() - $4::float8 * interval '1 second'
        )) AND NOT EXISTS (
            SELECT FROM responses AS s WHERE s.tenant = $1 AND s.id = r.id AND s.live::int = 1
        )
    )

-- reserve_response
WITH heard AS (
    INSERT INTO owners (name) VALUES ($3) ON CONFLICT (name) DO UPDATE SET heard_at = now()
), dropped AS (
    DELETE FROM reservations AS r WHERE r.tenant = $1 AND r.owner <> $3 AND NOT EXISTS (
        SELECT FROM owners
        WHERE name = r.owner AND heard_at > now() - $4::float8 * interval '1 second'
    )
)
INSERT INTO reservations (tenant, id, owner) VALUES ($1, $2, $3)
ON CONFLICT (tenant, id) DO UPDATE SET owner = excluded.owner

-- forget_reservations
DELETE FROM reservations WHERE NOT EXISTS (SELECT FROM owners WHERE name = reservations.owner)

-- clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- drop_runs_of
-- The runs are only renamed, so no transaction deletes many batches: see drop_deleted_batches. Only
-- background responses have a run. So the runs of other responses are not looked up. Such look-ups
-- would be slow, because ids are random.
WITH background AS MATERIALIZED (
    SELECT r.tenant, r.id FROM unnest((SELECT $1::bigint[])) AS a (seq)
    CROSS JOIN LATERAL (SELECT tenant, id FROM responses WHERE seq = a.seq LIMIT 1) AS r
    WHERE coalesce((SELECT s.background FROM summaries AS s WHERE s.seq = a.seq), TRUE)
), found AS MATERIALIZED (
    SELECT b.tenant, b.id, r.seq FROM background AS b
    CROSS JOIN LATERAL (SELECT seq FROM runs WHERE tenant = b.tenant AND id = b.id LIMIT 1) AS r
), renamed AS (
    UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -1, owner = NULL,
        request = '', prompt = ''
    -- The bounds make the planner expect few rows, and use the index.
    WHERE seq = ANY (ARRAY(SELECT seq FROM found))
    AND seq BETWEEN (SELECT min(seq) FROM found) AND (SELECT max(seq) FROM found) RETURNING seq
)
-- The join makes this statement lock the run before its locks, as a transaction that ends a run does.
-- Otherwise the two could deadlock.
DELETE FROM locks USING found JOIN renamed USING (seq)
WHERE locks.tenant = found.tenant AND locks.holder = found.id

-- forget_owners
DELETE FROM owners WHERE heard_at < now() - interval '1 day'

-- begin_run
INSERT INTO runs (tenant, id, model, request, prompt, api_key, by_name, start_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING seq

-- claim
-- Claims up to $3 runs. The next run always belongs to the tenant with the fewest running runs; runs
-- that are claimed by this statement count as running. Runs with start_by come after all others.
-- More runs of each tenant are read than are needed, because other processes may be about to claim
-- the first ones. The last column of each row is the number of runs that were read (the candidates).
-- If no run is claimed, there is one row, in which all other columns are NULL.
WITH RECURSIVE queued (tenant) AS (
    SELECT min(tenant) FROM runs WHERE ended_at IS NULL
    UNION ALL
    SELECT (SELECT min(r.tenant) FROM runs AS r WHERE r.ended_at IS NULL AND r.tenant > q.tenant)
    FROM queued AS q WHERE q.tenant IS NOT NULL
), owned AS (
    SELECT tenant, count(*) AS running,
        count(*) FILTER (WHERE owner = $1 AND ($5::text[] IS NULL OR id = ANY ($5))) AS own
    FROM runs WHERE ended_at IS NULL AND owner IS NOT NULL GROUP BY tenant
), ranked AS MATERIALIZED (
    SELECT c.seq, c.start_by, coalesce(o.running, 0)
        + row_number() OVER (PARTITION BY q.tenant ORDER BY c.start_by, c.seq) AS rank
    FROM queued AS q LEFT JOIN owned AS o ON o.tenant = q.tenant
    CROSS JOIN LATERAL (
        SELECT r.seq, r.start_by FROM runs AS r
        WHERE r.tenant = q.tenant AND r.ended_at IS NULL AND r.model = ANY ($2::text[])
        AND r.by_name = ($7::text IS NOT NULL) AND r.id = coalesce($7, r.id) AND (
            r.owner IS NULL OR (r.owner = $1 AND r.id <> ALL ($5::text[])) OR (
                r.owner <> $1 AND r.claimed_at <= now() - $4::float8 * interval '1 second'
                AND NOT EXISTS (
                    SELECT FROM owners WHERE name = r.owner
                    AND heard_at > now() - $4::float8 * interval '1 second'
                )
            )
        )
        ORDER BY r.start_by, r.seq
        LIMIT greatest(0, least(4 * $3::int + 64, $6::int - coalesce(o.own, 0)))
    ) AS c
), free AS (
    SELECT r.seq, r.owner AS had, ranked.start_by, ranked.rank
    FROM ranked JOIN runs AS r ON r.seq = ranked.seq
    -- The condition is checked again on the locked row, which may have changed meanwhile.
    WHERE num_nulls(r.ended_at) = 1 AND (
        r.owner IS NULL OR (r.owner = $1 AND r.id <> ALL ($5::text[])) OR (
            r.owner <> $1 AND r.claimed_at <= now() - $4::float8 * interval '1 second'
        )
    )
    ORDER BY ranked.start_by > 0, ranked.rank, ranked.start_by, r.seq
    LIMIT $3 FOR UPDATE OF r SKIP LOCKED
), taken AS (
    UPDATE runs SET owner = $1, claimed_at = now(), epoch = epoch + 1, attempts = attempts + 1
    FROM free WHERE runs.seq = free.seq
    RETURNING runs.seq, tenant, id, model, request, prompt, epoch, attempts, free.had, free.rank,
        free.start_by
), held AS (
    UPDATE locks SET owner = $1 FROM taken
    WHERE locks.tenant = taken.tenant AND locks.holder = taken.id
), heard AS (
    INSERT INTO owners (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET heard_at = now()
)
SELECT tenant, id, model, request, prompt, epoch, attempts, seq, had, c.candidates
FROM (SELECT count(*) AS candidates FROM ranked) AS c LEFT JOIN taken ON TRUE
ORDER BY start_by > 0, rank, start_by, seq

-- heartbeat
-- Drops each start_by that is over, and returns whether a claim may find a run. Reading all owners is
-- fast: there are few, and an index holds their names.
WITH RECURSIVE heard AS (
    INSERT INTO owners (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET heard_at = now()
), due AS (
    UPDATE runs SET start_by = 0 WHERE ended_at IS NULL AND start_by > 0 AND start_by <= $6::bigint
), owned (owner) AS (
    SELECT min(owner) FROM runs WHERE ended_at IS NULL AND owner IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.owner) FROM runs AS r
        WHERE r.ended_at IS NULL AND r.owner IS NOT NULL AND r.owner > o.owner
    ) FROM owned AS o WHERE o.owner IS NOT NULL
), dead AS (
    SELECT owner FROM owned WHERE owner <> $1 AND NOT EXISTS (
        SELECT FROM owners WHERE name = owned.owner
        AND extract(epoch FROM now() - heard_at) < $3::float8
    )
)
SELECT EXISTS (
    SELECT FROM runs WHERE ended_at IS NULL AND owner IS NULL AND model = ANY ($2::text[])
    AND by_name = ($5::text IS NOT NULL) AND id = coalesce($5, id)
) OR EXISTS (
    SELECT FROM dead JOIN runs AS r ON r.owner = dead.owner
    WHERE r.ended_at IS NULL AND r.model = ANY ($2::text[])
    AND r.by_name = ($5::text IS NOT NULL) AND r.id = coalesce($5, r.id)
    AND extract(epoch FROM now() - r.claimed_at) >= $3::float8
) OR EXISTS (
    SELECT FROM runs WHERE ended_at IS NULL AND owner = $1 AND id <> ALL ($4::text[])
    AND model = ANY ($2::text[]) AND by_name = ($5::text IS NOT NULL) AND id = coalesce($5, id)
)

-- release
WITH mine AS (
    SELECT seq FROM runs WHERE owner = $1 AND ended_at IS NULL ORDER BY seq FOR UPDATE
), unlocked AS (
    DELETE FROM locks WHERE owner = $1 AND NOT has_run AND NOT EXISTS (
        SELECT FROM runs
        WHERE runs.tenant = locks.tenant AND runs.id = locks.holder
        AND num_nulls(runs.ended_at) = 1
    )
)
UPDATE runs SET owner = NULL, attempts = greatest(0, attempts - 1)
FROM mine WHERE runs.seq = mine.seq

-- take_over_run
UPDATE runs SET owner = '', claimed_at = now(), epoch = epoch + 1, attempts = attempts + 1
WHERE tenant = $1 AND id = $2 AND num_nulls(ended_at) = 1
RETURNING tenant, id, model, request, prompt, epoch, attempts, seq

-- append
-- num_nulls(ended_at) = 1 means that a run has not ended, here and in other queries. With the
-- condition ended_at IS NULL, the planner might read all unended runs, if its statistics show only
-- few.
--
-- The statement sends no notification, because commits with notifications wait for one another. It
-- locks the rows of the runs: a process that takes a run over waits until the batches are stored,
-- and later batches of the former owner are refused. The caller sorts the runs by seq, so all
-- transactions lock them in the same order. The lock also makes the planner look up each run by
-- itself.
--
-- (SELECT $2), here and in other queries, hides the length of an array from the planner. Otherwise
-- a custom plan for a short array would seem cheaper than the generic plan. PostgreSQL would then
-- plan each execution anew, which takes longer than the execution.
--
-- A place is the position of a run in the lists $2 and $3. Returns the places of the runs whose
-- claims are valid. Also returns the other processes that follow these runs, each with the place of
-- its run.
WITH mine AS MATERIALIZED (
    SELECT r.seq, a.place, r.followers, r.followed_until, r.attempts
    FROM unnest((SELECT $2::bigint[]), (SELECT $3::int[]))
    WITH ORDINALITY AS a (seq, epoch, place)
    CROSS JOIN LATERAL (
        SELECT seq, followers, followed_until, attempts FROM runs
        WHERE seq = a.seq AND epoch = a.epoch AND num_nulls(ended_at) = 1 FOR NO KEY UPDATE
    ) AS r
), kept AS (
    INSERT INTO batches (run, first, count, lines, tokens, at)
    SELECT m.seq, b.first, b.count, b.lines, b.tokens, b.at
    FROM unnest(
        (SELECT $4::bigint[]), (SELECT $5::int[]), (SELECT $6::int[]), (SELECT $7::bytea[]),
        (SELECT $8::bytea[]), (SELECT $9::float8[])
    ) AS b (place, first, count, lines, tokens, at) JOIN mine AS m USING (place)
    WHERE b.count > 0
    ON CONFLICT DO NOTHING
), spoken AS (
    UPDATE runs SET attempts = 0
    WHERE seq = ANY (ARRAY(SELECT seq FROM mine WHERE attempts <> 0))
)
SELECT (SELECT coalesce(array_agg(place), '{}') FROM mine), f.places, f.names FROM (
    SELECT array_agg(m.place) AS places, array_agg(p.name) AS names
    FROM mine AS m CROSS JOIN unnest(m.followers) AS p (name)
    WHERE m.followed_until > now() AND p.name <> $1
) AS f

-- append_one
-- Like "append", but for one batch and without arrays, which takes a third less CPU time. Returns the
-- other processes that follow the run, or no row if the claim is not valid.
WITH mine AS MATERIALIZED (
    SELECT seq, followers, followed_until FROM runs
    WHERE seq = $2::bigint AND epoch = $3::int AND num_nulls(ended_at) = 1 FOR NO KEY UPDATE
), kept AS (
    INSERT INTO batches (run, first, count, lines, tokens, at)
    SELECT seq, $4::int, $5::int, $6::bytea, $7::bytea, $8::float8 FROM mine WHERE $5::int > 0
    ON CONFLICT DO NOTHING
), spoken AS (
    UPDATE runs SET attempts = 0
    WHERE seq = $2::bigint AND epoch = $3::int AND num_nulls(ended_at) = 1 AND attempts <> 0
)
SELECT CASE WHEN followed_until > now() THEN array_remove(followers, $1::text) END FROM mine

-- end_run
UPDATE runs SET ended_at = 0, owner = NULL, request = '', prompt = '', steering = NULL
WHERE tenant = $1 AND id = $2 AND epoch = $3 AND num_nulls(ended_at) = 1
AND steering_count = $4 RETURNING seq

-- events
-- A page ends with the batch that makes it longer than $5 bytes. This limit is needed because each
-- of the last batches of a run may contain the whole text of the response.
WITH run AS (
    SELECT seq, ended_at FROM runs WHERE tenant = $1 AND id = $2
), page AS MATERIALIZED (
    SELECT b.first, b.count, b.lines FROM (
        SELECT n.first, n.count, n.lines,
            sum(octet_length(n.lines)) OVER (ORDER BY n.first) - octet_length(n.lines) AS before
        FROM batches AS n JOIN run ON n.run = run.seq
        WHERE n.first <= $4::int AND n.first + n.count > $3::int AND n.first >= coalesce(
            (
                SELECT max(a.first) FROM batches AS a
                WHERE a.run = (SELECT seq FROM run) AND a.first <= $3::int
            ), 0
        )
    ) AS b WHERE b.before <= $5::bigint
)
SELECT
    run.ended_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM batches AS n
        WHERE n.run = run.seq AND n.first > coalesce((SELECT max(first) FROM page), $4::int)
    ),
    page.first, page.count, page.lines, ''::bytea
FROM run LEFT JOIN page ON TRUE ORDER BY page.first

-- follow
-- Locks the rows in the same order as "append". If no process has renewed the mark of a run in
-- time, the old list of its followers is dropped, because these processes may have ended.
WITH asked AS MATERIALIZED (
    SELECT r.seq, a.place
    FROM unnest((SELECT $2::text[]), (SELECT $3::text[]))
    WITH ORDINALITY AS a (tenant, id, place)
    CROSS JOIN LATERAL (
        SELECT seq FROM runs WHERE tenant = a.tenant AND id = a.id LIMIT 1
    ) AS r
    ORDER BY r.seq
), found AS MATERIALIZED (
    SELECT r.seq, a.place, r.followers, r.followed_until FROM asked AS a CROSS JOIN LATERAL (
        SELECT seq, followers, followed_until FROM runs
        WHERE seq = a.seq AND num_nulls(ended_at) = 1 FOR NO KEY UPDATE
    ) AS r
), marked AS (
    UPDATE runs SET followed_until = now() + $4::float8 * interval '1 second', followers = CASE
        WHEN f.followed_until IS NULL OR f.followed_until <= now() THEN ARRAY[$1::text]
        WHEN $1 = ANY (f.followers) THEN f.followers
        ELSE f.followers || $1
    END
    FROM found AS f WHERE runs.seq = f.seq
)
SELECT f.place, f.seq, coalesce((
    SELECT b.first + b.count - 1 FROM batches AS b WHERE b.run = f.seq
    ORDER BY b.first DESC LIMIT 1
), -1)
FROM found AS f

-- new_batches
SELECT a.run, b.first, b.count, b.lines, ''::bytea
FROM unnest((SELECT $1::bigint[]), (SELECT $2::int[])) AS a (run, last)
-- The limit makes the planner look up each run by itself, whatever its statistics are.
CROSS JOIN LATERAL (
    SELECT first, count, lines FROM batches WHERE run = a.run AND first > a.last
    ORDER BY first LIMIT 1000
) AS b

-- lock_conversation
-- Locks the row of the run. If the run is about to end, this statement waits, and the lock of the
-- conversation is refused.
WITH run AS MATERIALIZED (
    SELECT ended_at FROM runs WHERE tenant = $1 AND id = $3 FOR SHARE
), held AS (
    INSERT INTO locks (tenant, conversation, holder, owner)
    SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT FROM run WHERE ended_at IS NOT NULL)
    ON CONFLICT (tenant, conversation) DO UPDATE
    SET holder = excluded.holder, owner = excluded.owner,
        has_run = locks.has_run AND locks.holder = excluded.holder
    WHERE locks.holder = excluded.holder OR NOT (EXISTS (
        SELECT FROM owners
        WHERE name = locks.owner AND heard_at > now() - $5::float8 * interval '1 second'
    ) OR (
        SELECT num_nulls(ended_at) = 1 FROM runs WHERE tenant = locks.tenant AND id = locks.holder
    ) IS TRUE OR locks.confirmed_at > now() - $5::float8 * interval '1 second')
    RETURNING holder
), heard AS (
    INSERT INTO owners (name) SELECT $4 FROM held
    ON CONFLICT (name) DO UPDATE SET heard_at = now()
)
SELECT holder FROM held

-- confirm_lock
WITH held AS (
    UPDATE locks SET confirmed_at = now(), has_run = has_run OR $5::boolean
    WHERE tenant = $1 AND conversation = $2 AND holder = $3 AND owner = $4 RETURNING holder
), heard AS (
    INSERT INTO owners (name) SELECT $4 FROM held
    ON CONFLICT (name) DO UPDATE SET heard_at = now()
)
SELECT holder FROM held

-- release_lock
-- has_run is also true for a run whose creation is not committed yet.
DELETE FROM locks WHERE tenant = $1 AND conversation = $2 AND holder = $3 AND NOT has_run
AND NOT EXISTS (SELECT FROM runs WHERE tenant = $1 AND id = $3 AND num_nulls(ended_at) = 1)

-- partition_state
SELECT
    (SELECT count(*) FROM pg_inherits WHERE inhparent = 'antiphon.batches'::regclass),
    (SELECT max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''?(\d+)'))[1]::bigint)
     FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'antiphon.batches'::regclass),
    (SELECT coalesce(max(run), -1) FROM batches_rest),
    (SELECT last_value FROM runs_seq_seq)

-- expired_partitions
SELECT p.name, p.low, p.high FROM (
    SELECT c.relname::text AS name,
        coalesce((regexp_match(b.bounds, 'FROM \(''?(\d+)'))[1]::bigint, 0) AS low,
        (regexp_match(b.bounds, 'TO \(''?(\d+)'))[1]::bigint AS high
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) AS b
    WHERE i.inhparent = 'antiphon.batches'::regclass
) AS p
WHERE p.high <= (SELECT last_value FROM runs_seq_seq) AND NOT EXISTS (
    SELECT FROM runs WHERE seq >= p.low AND seq < p.high AND (ended_at IS NULL OR ended_at >= 0)
) ORDER BY p.high

-- drop_runs_between
DELETE FROM runs WHERE seq = ANY (ARRAY(
    SELECT seq FROM runs WHERE seq >= $1 AND seq < $2 ORDER BY seq LIMIT $3
))
RETURNING 1

-- drop_deleted_batches
-- Selects the runs first, then their batches. So only these rows are read, whatever the statistics of
-- the planner are.
WITH chosen AS MATERIALIZED (
    SELECT dead.seq AS run, b.first FROM (
        SELECT seq FROM runs WHERE ended_at BETWEEN $1 AND -1 ORDER BY seq LIMIT $2
    ) AS dead
    CROSS JOIN LATERAL (SELECT first FROM batches WHERE run = dead.seq LIMIT $2) AS b
    LIMIT $2
)
DELETE FROM batches USING chosen
WHERE batches.run = chosen.run AND batches.first = chosen.first

-- notify
SELECT pg_notify('antiphon', $1)

-- notify_many
-- The commit does not wait for the disk, because notifications need not survive a crash.
SELECT pg_notify(n.channel, n.payload)
FROM set_config('synchronous_commit', 'off', TRUE) AS commits,
    unnest($1::text[], $2::text[]) AS n (channel, payload)

-- lock_files
-- Only one transaction of each tenant at a time adds files. Otherwise two files that each fit into the
-- quota could together exceed it.
SELECT pg_advisory_xact_lock(1634628612, hashtext($1))

-- lock_vector_stores
SELECT pg_advisory_xact_lock(1634628613, hashtext($1))

-- lock_responses
SELECT pg_advisory_xact_lock(1634628614, hashtext($1))

-- lock_runs
SELECT pg_advisory_xact_lock(1634628616, hashtext($1))

-- unknown_blobs
SELECT unnest.key FROM unnest($1::text[]) AS unnest (key)
WHERE NOT EXISTS (SELECT FROM blobs AS b WHERE b.key = unnest.key)
AND NOT EXISTS (SELECT FROM unused_blobs AS u WHERE u.key = unnest.key)
AND NOT EXISTS (SELECT FROM responses AS r WHERE r.blob = unnest.key)

-- responses_in_blobs
SELECT seq, blob, input FROM responses WHERE blob > $1 ORDER BY blob LIMIT $2

-- move_response_blob
UPDATE responses SET blob = $3, input = $4, output = $5, tokens = $6
WHERE seq = $1 AND blob = $2 RETURNING seq

-- lock_vector_store_alone
SELECT seq FROM vector_stores WHERE tenant = $1 AND id = $2 FOR UPDATE

-- vector_store_row
SELECT seq FROM vector_stores WHERE tenant = $1 AND id = $2

-- vector_file_rows
SELECT seq FROM vector_files WHERE store = $1 AND id = ANY($2::text[])

-- vector_file_count
SELECT count(*) FROM vector_files WHERE store = $1

-- search_chunks
-- The argument 1 divides a rank by the logarithm of the text's length, because longer texts contain
-- more words by chance.
SELECT c.seq, f.id, ts_rank(c.words, asked, 1) AS score
FROM to_tsquery('english', $3) AS asked, chunks AS c
JOIN vector_stores AS s ON s.seq = c.store JOIN vector_files AS f ON f.seq = c.file
WHERE s.tenant = $1 AND s.id = $2 AND c.words @@ asked AND f.id = ANY($4::text[])
ORDER BY score DESC, c.seq LIMIT $5

-- roll_up_usage_rows | roll_up_usage_sums
WITH old AS (
    DELETE FROM {usage_rows | usage_sums} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {usage_rows | usage_sums}
        WHERE start < $2::bigint { | AND width = $3::bigint} ORDER BY start LIMIT {$3 | $4}
    )) RETURNING *
)
INSERT INTO usage_sums SELECT $1::bigint, start - start % $1::bigint, kind, tenant, api_key, model,
    sum(requests), sum(failed_requests), sum(cancelled_requests), sum(input_tokens),
    sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), sum(tool_calls),
    sum(latency_ms)
FROM old GROUP BY 1, 2, 3, 4, 5, 6
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

-- exchange_rates
-- All processes change the rows in the same order, which avoids deadlocks. excluded.per_minute -
-- excluded.level is the number of requests that the process reports. r.per_minute cannot be used
-- here, because the limit may have changed since the last report.
WITH asked AS (
    SELECT * FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
    WITH ORDINALITY AS a (scope, per_minute, taken, running, place)
), levels AS (
    INSERT INTO rates AS r (scope, level, per_minute, updated_at)
    SELECT scope, per_minute - taken, per_minute, clock_timestamp() FROM asked
    WHERE per_minute IS NOT NULL ORDER BY scope
    ON CONFLICT (scope) DO UPDATE SET
        level = least(
            excluded.per_minute,
            r.level - (excluded.per_minute - excluded.level) + excluded.per_minute / 60.0::float8
                * greatest(0, extract(epoch FROM excluded.updated_at - r.updated_at)::float8)
        ),
        per_minute = excluded.per_minute,
        updated_at = greatest(excluded.updated_at, r.updated_at)
    RETURNING scope, level
), reported AS (
    INSERT INTO running_requests AS r (scope, owner, count, heard_at)
    SELECT scope, $1, running, now() FROM asked ORDER BY scope
    ON CONFLICT (scope, owner) DO UPDATE SET count = excluded.count, heard_at = excluded.heard_at
)
SELECT coalesce(l.level, 0), coalesce((
    SELECT sum(r.count) FROM running_requests AS r
    WHERE r.scope = a.scope AND r.owner <> $1
    AND r.heard_at > now() - $2::float8 * interval '1 second'
), 0)::bigint
FROM asked AS a LEFT JOIN levels AS l ON l.scope = a.scope ORDER BY a.place

-- forget_rates
-- Deletes the rows of buckets that were unused for a long time. Such a bucket is full, and a scope
-- without a row also has a full bucket.
WITH full_buckets AS (
    DELETE FROM rates WHERE updated_at < now() - interval '10 minutes'
)
DELETE FROM running_requests WHERE heard_at < now() - interval '10 minutes'

-- drop_tenant_runs
-- This is one of the steps that delete a tenant: see deletion_steps.py. Each step changes few rows.
-- As in drop_runs_of, a run is only renamed. A sweep deletes its events later.
UPDATE runs SET tenant = '', id = 'deleted ' || seq, ended_at = -1, owner = NULL, request = '',
    prompt = ''
WHERE seq = ANY (ARRAY(SELECT seq FROM runs WHERE tenant = $1 LIMIT $2))

-- drop_containers
DELETE FROM containers WHERE tenant = $1 RETURNING 1

-- drop_lost_container_owners
-- If several processes run this statement at the same time, only one of them deletes the row of an
-- owner. In the same transaction, this process expires the containers of the owner.
DELETE FROM container_owners WHERE name = ANY (ARRAY(
    SELECT name FROM container_owners WHERE lease_until <= now() ORDER BY name
    FOR UPDATE SKIP LOCKED
)) RETURNING name

-- expire_containers_of_owners
UPDATE containers SET expired_at = now() WHERE owner = ANY ($1::text[]) AND expired_at IS NULL

-- renew_container_owner
INSERT INTO container_owners (name, url, lease_until)
VALUES ($1, $2, now() + $3::float8 * interval '1 second')
ON CONFLICT (name) DO UPDATE SET url = excluded.url, lease_until = excluded.lease_until

-- add_container_owner
INSERT INTO container_owners (name, url, lease_until)
VALUES ($1, $2, now() + $3::float8 * interval '1 second') ON CONFLICT DO NOTHING

-- report_containers
UPDATE containers SET body = u.body FROM unnest($2::text[], $3::bytea[]) AS u (id, body)
WHERE containers.owner = $1 AND containers.id = u.id AND containers.expired_at IS NULL

-- drop_expired_containers
DELETE FROM containers WHERE seq = ANY (ARRAY(
    SELECT seq FROM containers WHERE expired_at < now() - $1::float8 * interval '1 second'
    FOR UPDATE SKIP LOCKED
))

-- active_containers_of_owner
SELECT id FROM containers WHERE owner = $1 AND expired_at IS NULL

-- lock_containers
SELECT pg_advisory_xact_lock(1634628615, hashtext($1))

-- count_active_containers
SELECT count(*) FROM containers AS c JOIN container_owners AS o ON o.name = c.owner
WHERE c.tenant = $1 AND c.expired_at IS NULL AND o.lease_until > now()

-- add_container
INSERT INTO containers (tenant, id, owner, is_auto, body) VALUES ($1, $2, $3, $4, $5)

-- expire_containers
UPDATE containers SET expired_at = now()
WHERE owner = $1 AND id = ANY ($2::text[]) AND expired_at IS NULL

-- container
SELECT c.tenant, c.owner, c.is_auto, coalesce(o.url, ''),
    c.expired_at IS NULL AND coalesce(o.lease_until > now(), false), c.body
FROM containers AS c LEFT JOIN container_owners AS o ON o.name = c.owner
WHERE c.tenant = $1 AND c.id = $2

-- containers
SELECT c.tenant, c.owner, c.is_auto, coalesce(o.url, ''),
    c.expired_at IS NULL AND coalesce(o.lease_until > now(), false), c.body
FROM containers AS c LEFT JOIN container_owners AS o ON o.name = c.owner
WHERE c.tenant = $1 ORDER BY c.seq

-- drop_container
DELETE FROM containers WHERE tenant = $1 AND id = $2 RETURNING 1

-- drop_container_owner
DELETE FROM container_owners WHERE name = $1
