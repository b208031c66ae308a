// A response is the fold of its events. Items are replaced, never changed, so that components can
// compare them.

import { PARTS, PART_TEXTS, STATUSES, TEXT_FIELDS } from "./kinds.js";

const TERMINAL = new Set(["response.completed", "response.failed", "response.incomplete"]);

export const isTerminal = (event) => TERMINAL.has(event.type);

const replaced = (list, index, value) => {
  const copy = [...list];
  copy[index] = value;
  return copy;
};

/** Return the response after an event; `response` may be null before the first. */
export function fold(response, event) {
  if (event.response) {
    const output = isTerminal(event) ? event.response.output : response?.output ?? [];
    return { ...event.response, output };
  }
  if (event.type === "error") {
    return { ...response, status: "failed", error: { code: event.code, message: event.message } };
  }
  if (!response || event.output_index === undefined) return response;
  const item = foldItem(response.output[event.output_index], event);
  return item ? { ...response, output: replaced(response.output, event.output_index, item) } : response;
}

function foldItem(item, event) {
  if (event.item) return event.item;
  if (!item) return item;
  const textField = TEXT_FIELDS[event.type];
  if (textField) return { ...item, [textField]: (item[textField] ?? "") + event.delta };
  if (PART_TEXTS[event.type]) return appendToPart(item, event, ...PART_TEXTS[event.type]);
  if (PARTS[event.type]) return setPart(item, event, ...PARTS[event.type]);
  const handler = HANDLERS[event.type];
  if (handler) return handler(item, event);
  const status = STATUSES[event.type];
  return status ? { ...item, status } : item;
}

function appendToPart(item, event, field, indexField, empty, textField) {
  const index = event[indexField] ?? 0;
  const parts = item[field] ?? [];
  const part = parts[index] ?? empty;
  return {
    ...item,
    [field]: replaced(parts, index, { ...part, [textField]: part[textField] + event.delta }),
  };
}

function setPart(item, event, field, indexField) {
  return { ...item, [field]: replaced(item[field] ?? [], event[indexField], event.part) };
}

const commands = (item) => item.action?.commands ?? [];
const setCommand = (item, index, text) => ({
  ...item,
  action: { ...item.action, commands: replaced(commands(item), index, text) },
});

/** Events with fields of their own. */
const HANDLERS = {
  "response.output_text.annotation.added": (item, event) => {
    const part = item.content[event.content_index];
    const annotations = replaced(part.annotations ?? [], event.annotation_index, event.annotation);
    return { ...item, content: replaced(item.content, event.content_index, { ...part, annotations }) };
  },
  "response.image_generation_call.partial_image": (item, event) => ({
    ...item,
    partial: event.partial_image_b64,
  }),
  "response.shell_call_command.added": (item, event) =>
    setCommand(item, event.command_index, event.command ?? ""),
  "response.shell_call_command.delta": (item, event) =>
    setCommand(item, event.command_index, (commands(item)[event.command_index] ?? "") + event.delta),
  "response.shell_call_command.done": (item, event) =>
    setCommand(item, event.command_index, event.command),
  "response.shell_call_output_content.delta": (item, event) => {
    const output = item.output ?? [];
    const old = output[event.command_index] ?? { stdout: "", stderr: "" };
    const next = {
      ...old,
      stdout: (old.stdout ?? "") + (event.delta.stdout ?? ""),
      stderr: (old.stderr ?? "") + (event.delta.stderr ?? ""),
    };
    return { ...item, output: replaced(output, event.command_index, next) };
  },
};
