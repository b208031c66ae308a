-- The state that the processes share if several processes use the database. If only one process
-- uses the database, it keeps this state in memory.

-- All times in these tables are seconds of the machine's monotonic clock.
CREATE TABLE owners (name TEXT PRIMARY KEY, heard_at REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE locks (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    holder TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation)
) WITHOUT ROWID;
CREATE INDEX locks_by_holder ON locks (tenant, holder);

CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

CREATE TABLE rate_levels (scope TEXT PRIMARY KEY, level REAL NOT NULL, at REAL NOT NULL)
    WITHOUT ROWID;

CREATE TABLE rate_running (
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    running INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (scope, owner)
) WITHOUT ROWID;
