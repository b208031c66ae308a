-- When a response last confirmed its lock, in the transaction that relies on it. Who takes the lock
-- away waits for that transaction, and then sees this column: unlike other tables, which a
-- statement sees as they were when it began.
ALTER TABLE holds ADD COLUMN confirmed_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity';
