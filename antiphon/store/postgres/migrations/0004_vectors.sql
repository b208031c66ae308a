CREATE TABLE vector_stores (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    expires_at BIGINT,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX vector_stores_by_id ON vector_stores (tenant, id);

CREATE TABLE vector_files (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    batch TEXT,
    status TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    body BYTEA NOT NULL
);
CREATE UNIQUE INDEX vector_files_by_id ON vector_files (store, id);
CREATE INDEX vector_files_everywhere ON vector_files (id);
CREATE INDEX vector_files_unfinished ON vector_files (seq) WHERE status = 'in_progress';

CREATE TABLE vector_batches (
    store BIGINT NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (store, id)
);

CREATE TABLE chunks (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL,
    file BIGINT NOT NULL REFERENCES vector_files (seq) ON DELETE CASCADE,
    start BIGINT NOT NULL,
    text TEXT NOT NULL,
    words TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', text)) STORED
);
CREATE INDEX chunks_by_file ON chunks (file);
CREATE INDEX chunks_by_words ON chunks USING gin (words);

-- The vectors are in a table of their own, so that a query for all vectors does not read the texts.
CREATE TABLE chunk_vectors (
    chunk BIGINT PRIMARY KEY REFERENCES chunks (seq) ON DELETE CASCADE,
    store BIGINT NOT NULL,
    file BIGINT NOT NULL,
    model TEXT NOT NULL,
    vector BYTEA NOT NULL
);
CREATE INDEX chunk_vectors_by_store ON chunk_vectors (store, model, chunk);
ALTER TABLE chunk_vectors ALTER COLUMN vector SET STORAGE EXTERNAL;

CREATE FUNCTION forget_in_vector_stores() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM antiphon.vector_files WHERE id = old.id
    AND store IN (SELECT seq FROM antiphon.vector_stores WHERE tenant = old.tenant);
    RETURN NULL;
END
$$;
CREATE TRIGGER file_removed AFTER DELETE ON files
FOR EACH ROW EXECUTE FUNCTION forget_in_vector_stores();
