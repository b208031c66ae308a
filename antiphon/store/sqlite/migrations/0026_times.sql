-- When the items of a response were made, and when batches of events were. NULL: before this version.
ALTER TABLE responses ADD COLUMN times BLOB;
ALTER TABLE batches ADD COLUMN at REAL;
