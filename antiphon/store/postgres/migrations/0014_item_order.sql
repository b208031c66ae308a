-- A page of a conversation is read alone, and so are its items of some kinds: the role of a message,
-- the type of another item.
ALTER TABLE conversation_items ADD COLUMN kind TEXT NOT NULL DEFAULT '';
-- By the beginning of the body, which has this form: PostgreSQL cannot read JSON with U+0000.
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
