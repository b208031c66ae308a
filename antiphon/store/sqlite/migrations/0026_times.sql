-- times: when the items of a response were made. at: when a batch of events was made. Both are NULL
-- in rows that an earlier version has written.
ALTER TABLE responses ADD COLUMN times BLOB;
ALTER TABLE batches ADD COLUMN at REAL;
