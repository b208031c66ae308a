"""Settings: every option declared once, with its type, bounds, default and help.

It knows what can be set, not where it is written (``configuration``) nor what becomes of it.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .options import declare

__all__ = ["DEFAULT_MODEL", "Key", "McpServer", "Model", "Settings"]

#: Served when no model was named.
DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Limit = Annotated[int, Meta(ge=0)]
_Penalty = Annotated[float, Meta(gt=0)]

_server = partial(declare, group="Server")
_models = partial(declare, group="Models")
_storage = partial(declare, group="Storage")
_hooks = partial(declare, group="Webhooks")
_access = partial(declare, group="Access")
_limits = partial(declare, group="Limits")
_fetching = partial(declare, group="Fetching")
_tools = partial(declare, group="Tools")
_answers = partial(declare, group="Responses")
_chat = partial(declare, group="Chat")


class Model(Struct, frozen=True, kw_only=True):
    """``[models.NAME]``: a model as clients may ask for it. Sampling values are used where a
    request gives none; unset, they are the model's own."""

    source: Annotated[
        str,
        declare(
            "Where it is: a GGUF file, a folder with one, `hf:owner/repo/file.gguf`,"
            " `owner/repo:Q4_K_M`; a Hugging Face folder; the URL of an upstream. Only an engine"
            " that brings its model needs none."
        ),
    ] = ""
    engine: Annotated[str, declare("What runs it.")] = "llama"
    load: Annotated[
        Literal["start", "demand"],
        declare("When it is loaded: as the server starts, or by its first request."),
    ] = "start"
    idle_unload_s: Annotated[
        float,
        declare(
            "Seconds without a request after which it is unloaded, until the next; 0 for never.",
            ge=0,
        ),
    ] = 0
    aliases: Annotated[
        tuple[str, ...],
        declare("More names it answers to. Some clients choose their behaviour by the name."),
    ] = ()
    context_size: Annotated[
        _Count | None,
        declare(
            "Tokens of prompt and answer together. Unset: as the model was trained, up to 8192."
        ),
    ] = None
    threads: Annotated[_Count | None, declare("CPU threads. Unset: the general `threads`.")] = None
    parallel: Annotated[int, declare("Answers generated at the same time.", ge=1)] = 4
    gpu_layers: Annotated[int, declare("Layers put on a GPU; -1 for all.", ge=-1)] = -1
    template: Annotated[
        Path | None, declare("A Jinja chat template that replaces the model's own.")
    ] = None
    template_kwargs: Annotated[
        dict[str, Any],
        declare(
            "What the chat template is given; a request's `chat_template_kwargs` come on top.",
            kind="a table",
        ),
    ] = {}
    reasoning_format: Annotated[
        str | None,
        declare(
            "How it writes its thinking, a name of models.md; empty for not at all. Unset: found by"
            " its chat template."
        ),
    ] = None
    tool_format: Annotated[
        str | None,
        declare(
            "How it writes tool calls, a name of models.md. Unset: found by its chat template."
        ),
    ] = None
    thinking_budgets: Annotated[
        dict[str, _Limit],
        declare(
            "The most tokens of thinking for an effort (`low = 512`), for models that know no"
            " levels; a request's `thinking_token_budget` stands over it.",
            kind="a table",
        ),
    ] = {}
    dialect: Annotated[
        Literal["chat", "harmony"] | None,
        declare("How it is spoken to. Unset: harmony for gpt-oss, else its chat template."),
    ] = None
    vocabulary: Annotated[
        Path | None,
        declare("A folder with `o200k_base.tiktoken`, for gpt-oss. Unset: the one of a package."),
    ] = None
    projector: Annotated[
        Path | None,
        declare(
            "The picture encoder of a GGUF model (`mmproj-….gguf`). Unset: the only one in the"
            " folder that is its source."
        ),
    ] = None
    images: Annotated[
        Literal["note", "refuse"],
        declare(
            "What becomes of images where the model cannot see: a note takes their place, or the"
            " request is refused."
        ),
    ] = "note"
    adapters: Annotated[
        dict[str, str],
        declare(
            "LoRA adapters: the name of a model of its own → its file or folder.", kind="a table"
        ),
    ] = {}
    upstream_model: Annotated[
        str | None, declare("What an upstream calls the model. Unset: its only or first one.")
    ] = None
    api_key: Annotated[
        str | None,
        declare("The key for an upstream; `$NAME` takes it from the environment.", secret=True),
    ] = None
    engine_options: Annotated[
        dict[str, Any],
        declare("What its engine is given besides, by the engine's own names.", kind="a table"),
    ] = {}
    max_output_tokens: Annotated[
        _Count | None, declare("The most tokens of an answer, where a request gives none.")
    ] = None
    temperature: Annotated[_Temperature | None, declare("Sampling temperature.")] = None
    top_p: Annotated[_Share | None, declare("Nucleus sampling.")] = None
    top_k: Annotated[_Limit | None, declare("Tokens considered; 0 for all.")] = None
    min_p: Annotated[_Share | None, declare("Least probability, relative to the best token.")] = (
        None
    )
    repetition_penalty: Annotated[
        _Penalty | None, declare("Above 1 makes repetitions less likely.")
    ] = None


class McpServer(Struct, frozen=True, kw_only=True):
    """``[mcp_servers.NAME]``: an MCP server whose tools requests may use, by its name as
    ``server_label`` or ``connector_id``, without knowing where it is."""

    url: Annotated[
        str, declare("Where it is, by HTTP. It may be on this machine or its network.")
    ] = ""
    transport: Annotated[
        Literal["auto", "http", "sse"],
        declare("Streamable HTTP or SSE. `auto` tries the first, then the other."),
    ] = "auto"
    headers: Annotated[
        dict[str, str],
        declare(
            "What is sent with every request; a value `$NAME` is taken from the environment.",
            kind="a table",
            secret=True,
        ),
    ] = {}
    command: Annotated[str, declare("In place of a URL: what starts it on this machine.")] = ""
    tool: Annotated[
        Literal["code_interpreter", "shell", "web_search"] | None,
        declare("In place of both: the tool of this server that is meant by the name."),
    ] = None
    args: Annotated[tuple[str, ...], declare("Arguments of the command.")] = ()
    env: Annotated[
        dict[str, str],
        declare(
            "Its environment, besides `PATH`, `HOME` and the like; a value `$NAME` is taken from"
            " this one.",
            kind="a table",
            secret=True,
        ),
    ] = {}


class Key(Struct, frozen=True, kw_only=True):
    """``[[keys]]``: an API key, by its digest. `antiphon key new` makes one."""

    sha256: Annotated[str, declare("SHA-256 of the key, in hex.")]
    tenant: Annotated[str, declare("Whose it is: tenants do not see each other's responses.")] = (
        "default"
    )
    name: Annotated[str | None, declare("What logs call it. Unset: the tenant.")] = None
    requests_per_minute: Annotated[
        _Count | None, declare("Its rate limit. Unset: the general one.")
    ] = None


def _spare_cores() -> int:
    return max(1, (os.cpu_count() or 2) - 1)


def _home(variable: str, otherwise: str) -> Path:
    """A folder of the XDG base directory specification; relative ones are to be ignored."""
    given = os.environ.get(variable, "")  # noqa: TID251
    return (Path(given) if Path(given).is_absolute() else Path.home() / otherwise) / "antiphon"


class Settings(Struct, frozen=True, kw_only=True):
    """All that can be set. Limits and times of 0 mean "none"."""

    host: Annotated[str, _server("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _server("The port; 0 picks a free one.", ge=0, le=65535)] = 8000
    cors_origins: Annotated[
        tuple[str, ...],
        _server('Origins whose web pages may call the server; "*" for all.'),
    ] = ()
    drain_s: Annotated[
        float, _server("Seconds that runs get to end when the server is stopped.", ge=0)
    ] = 30
    lease_s: Annotated[
        float,
        _server(
            "Seconds after which the background runs of a server that is not heard of are taken"
            " over by another one of the same store.",
            ge=0.2,
        ),
    ] = 5
    metrics: Annotated[
        Literal["loopback", "everybody", "nobody"],
        _server("Who may read `/metrics` without a key."),
    ] = "loopback"
    log_format: Annotated[
        Literal["human", "json"], _server("Log lines for people or for machines.")
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _server("The least level that is logged.")
    ] = "info"

    models: Annotated[
        dict[str, Model],
        _models(
            "The models served: `[models.NAME]` tables, or `NAME=SOURCE` with commas in the"
            " environment. Named on the command line, these alone are served.",
            flag=None,
            default=f"{DEFAULT_MODEL}, which is fetched once",
            kind="tables [models.NAME]",
        ),
    ] = field(default_factory=lambda: {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)})
    default_model: Annotated[
        str | None, _models("The model of requests that name none. Unset: the first.")
    ] = None
    threads: Annotated[
        int, _models("CPU threads of each model.", default="all cores but one", ge=1)
    ] = field(default_factory=_spare_cores)
    cache_dir: Annotated[
        Path, _models("Where fetched models are kept.", default="~/.cache/antiphon/models")
    ] = field(default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models")

    formats_dir: Annotated[
        Path | None,
        _models(
            "A folder of formats of your own: `*.toml` files that tell how models write calls and"
            " thinking. See models.md."
        ),
    ] = None

    store: Annotated[
        str,
        _storage(
            "Where responses are kept: a SQLite file, `memory:`, or `postgresql://…` for several"
            " servers.",
            default="~/.local/share/antiphon/responses.db",
        ),
    ] = field(default_factory=lambda: str(_home("XDG_DATA_HOME", ".local/share") / "responses.db"))
    prompts_dir: Annotated[
        Path,
        _storage(
            "Where stored prompts are kept: `ID/VERSION.toml`, shared by all tenants.",
            default="~/.local/share/antiphon/prompts",
        ),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "prompts")
    retention_days: Annotated[
        float, _storage("Days after which a response is forgotten; 0 for never.", ge=0)
    ] = 30
    retention_events_s: Annotated[
        float,
        _storage(
            "Seconds that the events of a background run are kept after its end, for readers that"
            " come back; 0 for as long as the response.",
            ge=0,
        ),
    ] = 3600
    retention_responses: Annotated[
        int, _storage("The most responses kept; 0 for no limit.", ge=0)
    ] = 0
    retention_bytes: Annotated[
        int, _storage("The most bytes of responses kept; 0 for no limit.", ge=0)
    ] = 0

    webhook_url: Annotated[
        str | None, _hooks("Where the ends of background responses are told. Unset: nowhere.")
    ] = None
    webhook_secrets: Annotated[
        tuple[str, ...],
        _hooks(
            "What deliveries are signed with: `whsec_` and base64. Several while one is replaced.",
            flag=None,
            secret=True,
        ),
    ] = ()
    webhook_allow_private: Annotated[
        bool, _hooks("Let `webhook_url` be on this machine or its network, also without TLS.")
    ] = False

    keys: Annotated[
        tuple[Key, ...],
        _access(
            "The API keys: `[[keys]]` tables, or `TENANT=SHA256` with commas in the environment."
            " Without any, everybody who reaches the server may use it.",
            flag=None,
            kind="tables [[keys]]",
        ),
    ] = ()
    seal_keys: Annotated[
        tuple[str, ...],
        _access(
            "The keys of what clients carry sealed (thinking, compacted conversations):"
            " `ID:SECRET`, the secret being 32 bytes in base64. The first one seals, all of them"
            " open. Unset: a key kept in the store.",
            flag=None,
            secret=True,
        ),
    ] = ()
    prompt_writers: Annotated[
        tuple[str, ...],
        _access(
            "Names of the keys that may see and change stored prompts. Without keys: everybody on"
            " this machine."
        ),
    ] = ()
    allow_unauthenticated: Annotated[bool, _access("Listen beyond this machine without keys.")] = (
        False
    )
    hosts: Annotated[
        tuple[str, ...],
        _access(
            "Names this server is called by on its own machine without keys, besides `localhost`"
            ' and addresses; "*" for any. Others are refused: web pages could forge them.'
        ),
    ] = ()
    requests_per_minute: Annotated[
        int, _access("Requests a minute of each key, or of all without keys; 0 for no limit.", ge=0)
    ] = 0

    max_body_bytes: Annotated[int, _limits("Bytes of a request's body.", ge=1)] = 64 * 2**20
    max_file_bytes: Annotated[int, _limits("Bytes of an uploaded file.", ge=1)] = 64 * 2**20
    max_files_bytes: Annotated[
        int,
        _limits("Bytes of all files of a tenant, and of all its skills; 0 for no limit.", ge=0),
    ] = 10 * 2**30
    max_items: Annotated[int, _limits("Items in a request's input.", ge=1)] = 10_000
    max_tools: Annotated[int, _limits("Tools in a request.", ge=1)] = 1_024
    max_nesting: Annotated[
        int, _limits("How deep a request's JSON may be nested.", ge=8, le=400)
    ] = 64
    max_running: Annotated[int, _limits("Requests answered at the same time.", ge=1)] = 256
    max_background: Annotated[
        int, _limits("Background runs worked on at the same time; others are queued.", ge=1)
    ] = 64
    max_waiting: Annotated[
        int, _limits("Requests that may wait for their turn; more are answered 429.", ge=0)
    ] = 1024

    fetch_urls: Annotated[
        bool,
        _fetching(
            "Fetch images and files that requests name by URL, from public addresses alone. Needs"
            " the extra `fetch`."
        ),
    ] = True
    fetch_networks: Annotated[
        tuple[str, ...],
        _fetching(
            "Addresses and networks on this machine or its network that may be fetched from too,"
            " such as `10.1.0.0/16`."
        ),
    ] = ()

    sandbox: Annotated[
        Literal["off", "bubblewrap"],
        _tools(
            "Where code that models write is run (`code_interpreter`, `shell`). Off: nowhere."
            " bubblewrap needs Linux that lets users make namespaces."
        ),
    ] = "off"
    sandbox_python: Annotated[
        Path | None,
        _tools(
            "The Python that code runs in, with the packages it may use; a virtual environment's,"
            " for one. Unset: the system's."
        ),
    ] = None
    sandbox_memory: Annotated[
        Literal["1g", "4g", "16g", "64g"], _tools("The most memory a container may ask for.")
    ] = "1g"
    sandbox_disk_mb: Annotated[
        int, _tools("MiB of files in a container, which lie in memory.", ge=1)
    ] = 256
    sandbox_processes: Annotated[
        int, _tools("Processes and threads of a container.", ge=8, le=32_768)
    ] = 128
    sandbox_idle_s: Annotated[
        float, _tools("Seconds after which a container that nobody uses is gone.", gt=0)
    ] = 1200
    sandbox_pool: Annotated[
        int, _tools("Sandboxes that wait, so that the next container begins at once.", ge=0)
    ] = 1
    code_s: Annotated[float, _tools("Seconds that code of one call may run.", gt=0)] = 60
    max_containers: Annotated[int, _tools("Containers of a tenant at a time.", ge=1)] = 16

    programs: Annotated[
        bool,
        _tools(
            "Let models write programs that call tools (`programmatic_tool_calling`), where the"
            " extra `programs` is installed. They run inside WebAssembly, whatever `sandbox` says."
        ),
    ] = True
    program_s: Annotated[
        float,
        _tools(
            "Seconds that a program may compute at a stretch. It may wait for its calls as long as"
            " a tool may take.",
            gt=0,
        ),
    ] = 5
    program_memory_mb: Annotated[int, _tools("MiB of memory of a program.", ge=8, le=2048)] = 64
    max_program_calls: Annotated[int, _tools("Calls of tools that a program may make.", ge=1)] = 128

    web_search: Annotated[
        Literal["index", "ddgs", "exa", "tavily", "brave", "you", "searxng", "off"],
        _tools(
            "Where web searches go: the index that `antiphon index add` makes, if there is one, or"
            " a search engine."
        ),
    ] = "index"
    web_index: Annotated[
        Path,
        _tools("The index of web searches.", default="~/.local/share/antiphon/web.db"),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "web.db")
    web_search_url: Annotated[
        str | None, _tools("Where the search engine answers. Unset: its own address.")
    ] = None
    web_search_key: Annotated[
        str | None, _tools("The key for the search engine.", flag=None, secret=True)
    ] = None
    image_generation: Annotated[
        Literal["off", "images_api", "diffusers"],
        _tools(
            "Who makes images: a server of OpenAI's Images API, or a model of diffusers in this"
            " process, which needs the extra `diffusers`."
        ),
    ] = "off"
    image_generation_url: Annotated[
        str | None, _tools("Where the Images API is, such as `http://127.0.0.1:9000/v1`.")
    ] = None
    image_generation_key: Annotated[
        str | None, _tools("The key for the Images API.", flag=None, secret=True)
    ] = None
    image_generation_model: Annotated[
        str | None,
        _tools(
            "What makes images: the Images API's name for it, or a folder or repository of"
            " diffusers."
        ),
    ] = None
    image_generation_models: Annotated[
        dict[str, str],
        _tools(
            "More names that requests may give the `model` of images, and what they stand for.",
            flag=None,
            kind="a table",
        ),
    ] = {}
    image_generation_options: Annotated[
        dict[str, Any],
        _tools(
            "What the maker of images is told besides; see image-generation.md.",
            flag=None,
            kind="a table",
        ),
    ] = {}
    image_generation_pixels: Annotated[
        int, _tools("The most pixels a request may ask of an image.", ge=1)
    ] = 4 * 2**20
    image_generation_bytes: Annotated[int, _tools("The most bytes of an image.", ge=1)] = 32 * 2**20
    image_generation_at_once: Annotated[
        int, _tools("Images made side by side; others wait.", ge=1)
    ] = 4
    tool_options: Annotated[
        dict[str, Any],
        _tools(
            "What tools of other packages are told: a table for each, `[tool_options.NAME]`.",
            flag=None,
            kind="a table",
        ),
    ] = {}
    mcp: Annotated[
        bool,
        _tools("Call the tools of MCP servers. Needs the extra `mcp`; without it, nobody does."),
    ] = True
    mcp_servers: Annotated[
        dict[str, McpServer],
        _tools(
            "MCP servers that requests may name: `[mcp_servers.NAME]` tables.",
            flag=None,
            kind="tables [mcp_servers.NAME]",
        ),
    ] = field(default_factory=dict)
    mcp_urls: Annotated[
        bool,
        _tools("Let requests bring MCP servers of their own (`server_url`), at public addresses."),
    ] = True
    mcp_networks: Annotated[
        tuple[str, ...],
        _tools(
            "Addresses and networks on this machine or its network where MCP servers that requests"
            " bring may be too, such as `127.0.0.1`."
        ),
    ] = ()
    mcp_connect_s: Annotated[
        float, _tools("Seconds within which an MCP server has to be reached.", gt=0)
    ] = 20
    mcp_call_s: Annotated[
        float, _tools("Seconds within which an MCP server has to answer.", gt=0)
    ] = 120
    mcp_idle_s: Annotated[
        float, _tools("Seconds that an unused session with an MCP server is kept.", ge=0)
    ] = 60
    file_search: Annotated[
        bool,
        _tools(
            "Search vector stores of this server in responses. Off: the tool is one that nobody"
            " here runs."
        ),
    ] = True
    file_search_embeddings: Annotated[
        str | None,
        _tools(
            "The model that makes the vectors of files, by which they are found by what they mean."
            " Unset: they are found by their words."
        ),
    ] = None
    max_turns: Annotated[
        int, _tools("Times that a model is asked in one response in which tools run.", ge=1)
    ] = 32
    max_tools_s: Annotated[
        float, _tools("Seconds in which a response may call tools; 0 for no limit.", ge=0)
    ] = 0
    out_of_turns: Annotated[
        Literal["answer", "incomplete"],
        _tools(
            "What becomes of a response that has reached `max_turns`, `max_tools_s` or the"
            " request's `max_tool_calls`: the model answers with what it has, or it is incomplete."
        ),
    ] = "answer"
    tool_timeout_s: Annotated[float, _tools("Seconds that a call of a tool may take.", gt=0)] = 300

    unavailable_tools: Annotated[
        Literal["ignore", "refuse"],
        _answers(
            "What becomes of hosted tools that nobody here runs: left out of the prompt and"
            " reported, or a 400."
        ),
    ] = "ignore"
    broken_seals: Annotated[
        Literal["drop", "refuse"],
        _answers(
            "What becomes of sealed items that this server cannot open: left out and reported in"
            " `input_transformations`, or a 400."
        ),
    ] = "drop"
    reasoning_events: Annotated[
        Literal["openai", "open_responses"],
        _answers(
            "Names of the events of raw thinking: `response.reasoning_text.*` or"
            " `response.reasoning.*`."
        ),
    ] = "openai"
    summary_model: Annotated[
        str | None,
        _answers(
            "The model that summarises thinking where a request asks for it"
            " (`reasoning.summary`). Unset: the one that thought."
        ),
    ] = None
    keepalive_s: Annotated[
        float, _answers("Seconds of silence after which a stream says `keepalive`.", gt=0)
    ] = 15
    upstream_patience_s: Annotated[
        float,
        _answers(
            "Seconds that a stream waits for the first word of an upstream, so that what it refuses"
            " is an HTTP error; 0 to begin at once.",
            ge=0,
        ),
    ] = 3
    timeout_s: Annotated[float, _answers("Seconds a response may take; 0 for no limit.", ge=0)] = 0

    chat_url: Annotated[
        str | None,
        _chat("The server to talk to. Unset: the one of `host` and `port`.", flag="--url"),
    ] = None
    chat_model: Annotated[
        str | None, _chat("The model to talk to. Unset: the server's default.", flag="--model")
    ] = None
    chat_key: Annotated[str | None, _chat("The API key to show.", flag="--key", secret=True)] = None
