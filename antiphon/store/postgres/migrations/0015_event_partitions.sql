-- Events are partitioned by the row number of their run, so each partition holds the events of runs
-- that were created one after another. A sweep drops the partitions of old runs as a whole, and
-- creates new partitions in advance (see partitions.py).
--
-- The existing table becomes the first partition and keeps its name. During an upgrade, servers of
-- the previous version still use this table. It accepts the events of all existing runs and of many
-- new ones.
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
-- The default partition. It receives the batches of a run if no partition was created for the run
-- in time.
CREATE TABLE batches_rest PARTITION OF event_batches DEFAULT;

-- From now on, a run is deleted only when it has no batches any more. So the trigger that deletes
-- batches is not needed.
DROP TRIGGER runs_gone ON runs;
DROP FUNCTION drop_batches();
