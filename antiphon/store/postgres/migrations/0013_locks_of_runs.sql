-- has_run: whether the lock belongs to a run. Such a lock is released only when the run ends or is
-- deleted.
ALTER TABLE holds ADD COLUMN has_run BOOLEAN NOT NULL DEFAULT FALSE;
