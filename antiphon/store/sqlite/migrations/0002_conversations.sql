CREATE TABLE conversations (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX conversations_by_id ON conversations (tenant, id);

CREATE TABLE conversation_items (
    position INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations (seq) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX conversation_items_by_id ON conversation_items (conversation, id);
CREATE INDEX conversation_items_of_tenant ON conversation_items (tenant, id);
