-- times: when the items of a response were made. at: when a batch of events was made. Both are NULL
-- in rows that an earlier version has written.
ALTER TABLE responses ADD COLUMN times BYTEA;
ALTER TABLE event_batches ADD COLUMN at DOUBLE PRECISION;
