-- kind: the role of a message, or the type of any other item. With the new indexes, a query reads
-- only the items of one page, or only the items of some kinds.
ALTER TABLE conversation_items ADD COLUMN kind TEXT NOT NULL DEFAULT '';
UPDATE conversation_items SET kind = coalesce(
    iif(json_extract(CAST(body AS TEXT), '$.type') = 'message',
        json_extract(CAST(body AS TEXT), '$.role'),
        json_extract(CAST(body AS TEXT), '$.type')),
    ''
);
CREATE INDEX conversation_items_in_order ON conversation_items (conversation, position);
CREATE INDEX conversation_items_by_kind ON conversation_items (conversation, kind, position);
