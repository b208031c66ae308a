CREATE TABLE vector_stores (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    expires_at INTEGER,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX vector_stores_by_id ON vector_stores (tenant, id);
CREATE INDEX vector_stores_expiring ON vector_stores (expires_at);

CREATE TABLE vector_files (
    seq INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    batch TEXT,
    status TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX vector_files_by_id ON vector_files (store, id);
CREATE INDEX vector_files_everywhere ON vector_files (id);
CREATE INDEX vector_files_unfinished ON vector_files (seq) WHERE status = 'in_progress';

CREATE TABLE vector_batches (
    store INTEGER NOT NULL REFERENCES vector_stores (seq) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (store, id)
) WITHOUT ROWID;

-- AUTOINCREMENT: the numbers of deleted chunks are never used again. So a number that a cache holds
-- cannot mean another chunk later.
CREATE TABLE chunks (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    store INTEGER NOT NULL,
    file INTEGER NOT NULL REFERENCES vector_files (seq) ON DELETE CASCADE,
    start INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX chunks_by_file ON chunks (file);

-- The vectors are in a table of their own, so that a query for all vectors does not read the texts.
CREATE TABLE chunk_vectors (
    chunk INTEGER PRIMARY KEY REFERENCES chunks (seq) ON DELETE CASCADE,
    store INTEGER NOT NULL,
    file INTEGER NOT NULL,
    model TEXT NOT NULL,
    vector BLOB NOT NULL
);
CREATE INDEX chunk_vectors_by_store ON chunk_vectors (store, model, chunk);

-- The number of the vector store is indexed like a word. So a search in one vector store does not
-- read the chunks of other vector stores.
CREATE VIRTUAL TABLE chunk_words USING fts5 (
    store, text, content='chunks', content_rowid='seq', tokenize='porter unicode61'
);
CREATE TRIGGER chunk_added AFTER INSERT ON chunks BEGIN
    INSERT INTO chunk_words (rowid, store, text) VALUES (new.seq, new.store, new.text);
END;
CREATE TRIGGER chunk_removed AFTER DELETE ON chunks BEGIN
    INSERT INTO chunk_words (chunk_words, rowid, store, text)
    VALUES ('delete', old.seq, old.store, old.text);
END;
CREATE TRIGGER file_removed AFTER DELETE ON files BEGIN
    DELETE FROM vector_files WHERE id = old.id
    AND store IN (SELECT seq FROM vector_stores WHERE tenant = old.tenant);
END;
