-- The conversation that a run keeps locked until its end, also over a restart.
ALTER TABLE runs ADD COLUMN conversation TEXT;
