-- chosen: the number of the default version. last: the highest version number that was ever used.
CREATE TABLE skills (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    chosen INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE UNIQUE INDEX skills_by_id ON skills (tenant, id);
CREATE INDEX skills_in_order ON skills (tenant, seq);

CREATE TABLE skill_versions (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    skill BIGINT NOT NULL REFERENCES skills (seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    bytes BIGINT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX skill_versions_by_number ON skill_versions (skill, number);

CREATE TABLE bundles (
    version BIGINT PRIMARY KEY REFERENCES skill_versions (seq) ON DELETE CASCADE,
    content BYTEA NOT NULL
);
-- EXTERNAL prevents compression: bundles are compressed already.
ALTER TABLE bundles ALTER COLUMN content SET STORAGE EXTERNAL;
