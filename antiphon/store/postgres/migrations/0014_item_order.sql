-- kind: the role of a message, or the type of any other item. With the new indexes, a query reads
-- only the items of one page, or only the items of some kinds.
ALTER TABLE conversation_items ADD COLUMN kind TEXT NOT NULL DEFAULT '';
-- The kind of an existing item is taken from the beginning of its body, by regular expressions.
-- PostgreSQL's JSON functions cannot be used, because they reject U+0000.
UPDATE conversation_items AS i SET kind = coalesce(
    substring(b.start FROM '^\{"type":"message","id":"[^"]*","role":"([a-z_]+)"'),
    substring(b.start FROM '^\{"type":"([a-z_]+)"'),
    ''
)
FROM (
    SELECT position, encode(substring(body FROM 1 FOR 1000), 'escape') AS start
    FROM conversation_items
) AS b
WHERE b.position = i.position;
CREATE INDEX conversation_items_in_order ON conversation_items (conversation, position);
CREATE INDEX conversation_items_by_kind ON conversation_items (conversation, kind, position);
