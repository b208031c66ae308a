-- conversation: the conversation that the run keeps locked until its end, even if the server
-- restarts.
ALTER TABLE runs ADD COLUMN conversation TEXT;
