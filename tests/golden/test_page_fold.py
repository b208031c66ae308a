"""The web page's fold: it shows the streamed texts of all stories as the items finally contain
them."""

from __future__ import annotations

import json
import shutil
import subprocess

import msgspec
import pytest

from antiphon.http.ui.routes import STATIC
from antiphon.stream.kinds import KINDS
from antiphon.wire.tags import tag_of
from tests.golden.story import FOLDER, play, read

#: Reads lists of events. Writes, for each finished item, its texts as streamed and as finished.
_SCRIPT = """
import { fold } from %s;
const parts = (list) => (list ?? []).map((part) => part.text ?? part.refusal);
const texts = (item) => JSON.stringify([
  item.arguments ?? "", item.input ?? "", item.code ?? "", item.action?.commands ?? [],
  parts(item.content), parts(item.summary),
]);
const pairs = [];
for (const events of JSON.parse(await new Response(process.stdin).text())) {
  let response = null;
  for (const event of events) {
    if (event.type === "response.output_item.done") {
      const streamed = response.output[event.output_index];
      pairs.push([event.item.type, texts(streamed), texts(event.item)]);
    }
    response = fold(response, event);
  }
}
console.log(JSON.stringify(pairs));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_page_shows_the_texts_of_each_item_while_they_stream() -> None:
    stories = [read(path) for path in sorted(FOLDER.glob("*.txt"))]
    logs = [(await play(story, story.turns)).events for story in stories]
    script = _SCRIPT % json.dumps((STATIC / "js" / "fold.js").as_uri())
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=msgspec.json.encode(logs),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    pairs = json.loads(done.stdout)
    assert {kind for kind, _, _ in pairs} > {"message", "reasoning", "function_call", "shell_call"}
    streamed = {tag_of(cls) for cls, kind in KINDS.items() if kind.channels or kind.progress}
    assert [pair for pair in pairs if pair[0] in streamed and pair[1] != pair[2]] == []
