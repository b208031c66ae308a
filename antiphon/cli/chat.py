"""Terminal chat client for a running server."""

from __future__ import annotations

import base64
import contextlib
import mimetypes
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphon.errors import SetupError

from .client import Json, RequestFailed, Server, remember_server
from .transcript import AnswerPrinter, printable

_HELP = (
    "/new starts a new conversation · /help lists all commands · /quit or Ctrl-D quits"
    " · Ctrl-C stops an answer"
)
_COMMANDS_HELP = """\
/new              start a new conversation
/retry            answer the last message again
/model [NAME]     show the models; with a name: switch to this model
/system [TEXT]    set the instructions for the model; without a text: remove them
/file PATH        attach an image or a document to the next message
/tools [NAME …]   choose the tools: web_search, code_interpreter, shell, image_generation,
                  file_search:VECTOR_STORE_ID, mcp:LABEL; off for none
/save PATH        write the conversation to a file, as Markdown
/help             show this list
/quit, Ctrl-D     quit
Ctrl-C            stop an answer"""

#: Name → the tool, as a request declares it.
_TOOLS: Mapping[str, Json] = {
    "web_search": {"type": "web_search"},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "shell": {"type": "shell", "environment": {"type": "container_auto"}},
    "image_generation": {"type": "image_generation"},
}


class _Conversation:
    """The current conversation of the terminal client, with its settings: model, instructions,
    tools. The server stores the items of the conversation. This object keeps only the id of the
    last response, and the texts for the command ``/save``."""

    def __init__(
        self, server: Server, model: str | None, console: Console, read_line: Callable[[str], str]
    ) -> None:
        self._server = server
        self._model = model
        self._console = console
        self._read_line = read_line
        self._instructions: str | None = None
        self._tools: list[Json] = []
        self._files: list[Json] = []
        self._previous: str | None = None
        #: The last message: its content, the id of the response before it, and its text.
        self._last: tuple[Any, str | None, str] | None = None
        self._turns: list[tuple[str, str]] = []

    def send(self, text: str) -> None:
        """Send a message with the attached files and print the answer as it streams."""
        content: Any = text
        if self._files:
            parts = [*self._files, {"type": "input_text", "text": text}]
            content = [{"role": "user", "content": parts}]
            self._files = []
        self._ask(content, text)

    def _ask(self, content: object, text: str) -> None:
        self._last = (content, self._previous, text)
        answer = self._stream(content)
        while answer.approvals:
            replies = [self._approval(each) for each in answer.approvals]
            answer = self._stream(replies)
        self._turns.append((text, answer.text))

    def _stream(self, content: object) -> AnswerPrinter:
        answer = AnswerPrinter(self._console, self._server.root_url)
        body = {
            "input": content,
            "model": self._model,
            "instructions": self._instructions,
            "tools": self._tools,
            "previous_response_id": self._previous,
        }
        stream = self._server.events({key: value for key, value in body.items() if value})
        try:
            with contextlib.closing(stream), _silent_keyboard():
                for event in stream:
                    answer.print(event)
        except KeyboardInterrupt:
            answer.approvals = []
            answer.note("(stopped; this message and its answer are not part of the conversation)")
        except RequestFailed as error:
            answer.approvals = []
            answer.note(str(error), "red")
        answer.end()
        if answer.response is not None and answer.response["status"] != "failed":
            self._previous = answer.response["id"]
        return answer

    def _approval(self, request: Json) -> Json:
        """Ask the user whether an MCP call may run. Return the answer as an input item for the next
        request."""
        call = f"{request['server_label']}: {request['name']}({request['arguments']})"
        self._note(f"[approval] {call}")
        try:
            allowed = self._read_line("Allow it? [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            allowed = False
        return {
            "type": "mcp_approval_response",
            "approval_request_id": request["id"],
            "approve": allowed,
        }

    # --- commands --------------------------------------------------------------------------------

    def new(self, _: str) -> None:
        """Start a new conversation."""
        self._previous, self._last, self._turns = None, None, []
        self._note("(new conversation)")

    def retry(self, _: str) -> None:
        """Send the last message again. The new answer replaces the old one."""
        if self._last is None:
            return self._note("(there is no message yet)")
        content, self._previous, text = self._last
        if self._turns:
            self._turns.pop()
        self._ask(content, text)

    def model(self, name: str) -> None:
        """Show the models. If a name is given, switch to this model."""
        try:
            names = self._server.models()
        except RequestFailed as error:
            return self._note(str(error), "red")
        if name and name not in names:
            return self._note(f"(there is no model {name}; there are {', '.join(names)})", "red")
        if name:
            self._model = name
        self._note(f"(model: {self._model or 'the default'}; there are {', '.join(names)})")

    def system(self, text: str) -> None:
        """Set the system instructions of the chat. If ``text`` is empty, remove them."""
        self._instructions = text or None
        self._note("(instructions are set)" if text else "(no instructions)")

    def file(self, path: str) -> None:
        """Attach a file to the next message."""
        try:
            part = _file_part(Path(path).expanduser())
        except OSError as error:
            return self._note(f"({path or 'name a file'}: {error.strerror})", "red")
        self._files.append(part)
        self._note(f"({path} goes with the next message)")

    def tools(self, text: str) -> None:
        """Choose the tools that the model may use, and print them. ``text``: the names of the
        tools, ``off`` for no tools, or "" to keep the current choice."""
        names = text.replace(",", " ").split()
        try:
            if names:
                self._tools = [] if names == ["off"] else [_tool(name) for name in names]
        except ValueError as error:
            return self._note(f"({error})", "red")
        used = ", ".join(_tool_name(tool) for tool in self._tools)
        self._note(f"(tools: {used or 'none'}; there are {', '.join(_TOOLS)}, …)")

    def save(self, path: str) -> None:
        """Write the conversation to a file."""
        lines = [f"**You:** {asked}\n\n**Answer:** {answer}\n" for asked, answer in self._turns]
        try:
            Path(path).expanduser().write_text("\n".join(lines), encoding="utf-8")
        except OSError as error:
            return self._note(f"({path or 'name a file'}: {error.strerror})", "red")
        self._note(f"(saved to {path})")

    def help(self, _: str = "") -> None:
        """Print the commands."""
        self._note(_COMMANDS_HELP)

    def remind(self) -> None:
        """Print the short help, for example after Ctrl-C. It says how to quit."""
        self._note(_HELP)

    def unknown(self, _: str) -> None:
        """Reject an unknown command instead of sending it as a message."""
        self._note(f"(unknown command) {_HELP}")

    def _note(self, text: str, style: str = "dim") -> None:
        self._console.print(printable(text), style=style, soft_wrap=True)


def _file_part(path: Path) -> Json:
    """Return the content part of a message that contains this file. Raises ``OSError``."""
    kind = mimetypes.guess_type(path.name)[0] or "text/plain"
    data = base64.b64encode(path.read_bytes()).decode()
    url = f"data:{kind};base64,{data}"
    if kind.startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_file", "filename": path.name, "file_data": url}


def _tool(name: str) -> Json:
    """Return the definition of a tool for the field ``tools`` of a request. ``name``: what the user
    typed. Raises ``ValueError`` for an unknown name."""
    kind, _, detail = name.partition(":")
    if kind == "file_search" and detail:
        return {"type": "file_search", "vector_store_ids": [detail]}
    if kind == "mcp" and detail:
        return {"type": "mcp", "server_label": detail}
    if name not in _TOOLS:
        raise ValueError(f"there is no tool {name}; /help lists them")
    return _TOOLS[name]


def _tool_name(tool: Json) -> str:
    detail = tool.get("server_label") or ",".join(tool.get("vector_store_ids", ()))
    return f"{tool['type']}:{detail}" if detail else str(tool["type"])


def chat(server: Server, *, model: str | None = None) -> None:
    """Chat until ``/quit`` or the end of input.

    Raises ``SetupError`` if the server does not answer, rejects the key or does not serve the
    model."""
    names = server.models()
    if model is not None and model not in names:
        raise SetupError(f"{server.url} does not serve {model!r}; it serves {', '.join(names)}")
    remember_server(server)
    console = Console(highlight=False, markup=False, emoji=False)
    read_line = _line_reader()
    conversation = _Conversation(server, model, console, read_line)
    console.print(f"{server.url}\n{_HELP}", style="dim", soft_wrap=True)
    for text in _messages(read_line, conversation.remind):
        if not _run(conversation, text):
            return


def _run(conversation: _Conversation, text: str) -> bool:
    """Run a slash command or send a message to the model. Returns False if the user wants to leave
    (``/quit``), otherwise True."""
    if not text.startswith("/"):
        conversation.send(text)
        return True
    name, _, argument = text.partition(" ")
    if name == "/quit":
        return False
    commands: Mapping[str, Callable[[str], None]] = {
        "/new": conversation.new,
        "/retry": conversation.retry,
        "/model": conversation.model,
        "/system": conversation.system,
        "/file": conversation.file,
        "/tools": conversation.tools,
        "/save": conversation.save,
        "/help": conversation.help,
    }
    commands.get(name, conversation.unknown)(argument.strip())
    return True


# --- input ---------------------------------------------------------------------------------------


def _line_reader() -> Callable[[str], str]:
    """Return a function that reads a line. A pasted text counts as one line, even if it has line
    breaks."""
    with contextlib.suppress(ImportError):
        import readline  # gives ``input`` a history and line editing

        readline.parse_and_bind("set enable-bracketed-paste on")
    is_terminal = sys.stdin.isatty()
    return lambda prompt: input(prompt if is_terminal else "")


def _messages(read_line: Callable[[str], str], interrupted: Callable[[], None]) -> Iterator[str]:
    """Yield each message or command that the user types, until the end of input. ``interrupted`` is
    called on Ctrl-C."""
    while True:
        try:
            text = read_line("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            interrupted()
            continue
        if text:
            yield text


@contextlib.contextmanager
def _silent_keyboard() -> Iterator[None]:
    """Turn off the terminal's echo until the block ends. Text that the user types meanwhile is not
    shown. The next prompt reads this text."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
