// The names that the user gave to conversations. The API has no names of responses: this browser
// stores them, until the key is forgotten.
import { onForget } from "../api.js";
import { createStore, inBrowser } from "../lib.js";

const saved = inBrowser("names");
/** The oldest names are dropped beyond this many responses. */
const LIMIT = 2000;

/** The name of its conversation by the id of each response. */
export const names = createStore({ byResponse: saved.read({}) });

function write(entries) {
  const byResponse = Object.fromEntries(entries.slice(-LIMIT));
  names.update({ byResponse });
  if (entries.length) saved.write(byResponse);
  else saved.remove();
}

/** Give all responses of a conversation a name; an empty one removes it. */
export function setName(ids, name) {
  const others = Object.entries(names.get().byResponse).filter(([id]) => !ids.includes(id));
  write(name ? [...others, ...ids.map((id) => [id, name])] : others);
}

export const nameOf = (id) => names.get().byResponse[id] ?? "";

onForget(() => write([]));
