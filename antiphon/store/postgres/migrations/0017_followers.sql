-- followers: the processes that have readers of the run and follow it until followed_until. The
-- process that appends events to the run notifies these processes.
ALTER TABLE runs ADD COLUMN followers TEXT[] NOT NULL DEFAULT '{}', ADD COLUMN followed_until TIMESTAMPTZ;
