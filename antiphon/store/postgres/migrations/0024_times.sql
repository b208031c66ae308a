-- When the items of a response were made, and when batches of events were. NULL: before this version.
ALTER TABLE responses ADD COLUMN times BYTEA;
ALTER TABLE event_batches ADD COLUMN at DOUBLE PRECISION;
