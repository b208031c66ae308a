-- Events are partitioned by the number of their run, which is the order in which runs were created:
-- a sweep drops the partitions of old runs whole, and creates new ones ahead (see partitions.py).
-- The present table becomes the first partition and keeps its name: servers of the version before,
-- which run until they are replaced, use it for all runs that exist and for many more.
CREATE TABLE event_batches (
    run BIGINT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lines BYTEA NOT NULL,
    tokens BYTEA NOT NULL,
    PRIMARY KEY (run, first)
) PARTITION BY RANGE (run);
DO $$
BEGIN
    EXECUTE format(
        'ALTER TABLE antiphon.event_batches ATTACH PARTITION antiphon.batches'
        ' FOR VALUES FROM (MINVALUE) TO (%s)',
        ((SELECT coalesce(max(seq), 0) FROM antiphon.runs) / 16384 + 2) * 16384
    );
END
$$;
-- Where the batches of a run go if no partition was created in time.
CREATE TABLE batches_rest PARTITION OF event_batches DEFAULT;

-- A run is deleted when it has no more batches.
DROP TRIGGER runs_gone ON runs;
DROP FUNCTION drop_batches();
