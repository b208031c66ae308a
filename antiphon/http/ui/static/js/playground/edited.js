// What an answer becomes when the user changes its text.

/** The text of a message, of all its parts. */
export const messageText = (item) => item.content.map((part) => part.text ?? part.refusal ?? "").join("\n\n");

/**
 * The output with changed messages. `texts`: by index in the output; an empty text removes its message.
 * Calls of tools and their results stay as they were, since they are facts. Citations point into the old
 * text, and the reasoning before a changed message led to another text: both are left out. A changed
 * message is a new item and has no id.
 */
export function editedOutput(output, texts) {
  const isChanged = (index) => texts[index] !== undefined && texts[index] !== messageText(output[index]);
  const next = (index) => output.findIndex((item, at) => at > index && item.type !== "reasoning");
  return output.flatMap((item, index) => {
    if (item.type === "reasoning") return isChanged(next(index)) ? [] : [item];
    if (!isChanged(index)) return [item];
    return texts[index].trim() ? [withText(item, texts[index])] : [];
  });
}

const withText = ({ phase }, text) => ({
  type: "message",
  role: "assistant",
  status: "completed",
  ...(phase ? { phase } : {}),
  content: [{ type: "output_text", text, annotations: [] }],
});

/** Items whose last message the model goes on with, instead of beginning another one. */
export function leftOpen(items) {
  const last = items.at(-1);
  return last?.type === "message" && last.role === "assistant"
    ? [...items.slice(0, -1), { ...last, status: "incomplete" }]
    : items;
}
