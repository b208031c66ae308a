// What the programs share: they run their checks in order, each named as it begins.
import assert from "node:assert/strict";

export { assert };
export const MODEL = process.env.MODEL;
// A point, as PNG in base64.
export const PICTURE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

export async function run(...checks) {
  for (const check of checks) {
    console.log(check.name);
    const late = new Promise((_, reject) =>
      setTimeout(() => reject(new Error(`${check.name} takes too long`)), 90_000).unref(),
    );
    await Promise.race([check(), late]);
  }
  process.exit(0);
}
