-- confirmed_at: when a response last confirmed that it has the lock. A transaction that relies on
-- the lock sets this column. Another transaction that wants to take the lock away waits for the
-- row. It then sees the new value of this column. It does not see the changes of other tables that
-- the first transaction made, because a statement sees other rows as they were when the statement
-- began.
ALTER TABLE holds ADD COLUMN confirmed_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity';
