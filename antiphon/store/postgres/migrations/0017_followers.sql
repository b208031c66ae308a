-- The processes that follow a run which another one may write, until when. Whoever appends to the run
-- notifies them.
ALTER TABLE runs ADD COLUMN followers TEXT[] NOT NULL DEFAULT '{}', ADD COLUMN followed_until TIMESTAMPTZ;
