-- Whether the lock belongs to a run: only the end of the run, or its deletion, releases it.
ALTER TABLE holds ADD COLUMN has_run BOOLEAN NOT NULL DEFAULT FALSE;
