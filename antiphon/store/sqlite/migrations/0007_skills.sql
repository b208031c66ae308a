-- chosen: the number of the default version. last: the highest version number that was ever used.
CREATE TABLE skills (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    chosen INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE UNIQUE INDEX skills_by_id ON skills (tenant, id);
CREATE INDEX skills_in_order ON skills (tenant, seq);

CREATE TABLE skill_versions (
    seq INTEGER PRIMARY KEY,
    skill INTEGER NOT NULL REFERENCES skills (seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX skill_versions_by_number ON skill_versions (skill, number);

CREATE TABLE bundles (
    version INTEGER PRIMARY KEY REFERENCES skill_versions (seq) ON DELETE CASCADE,
    content BLOB NOT NULL
);
