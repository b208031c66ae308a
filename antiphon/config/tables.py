"""The tables of settings that belong together, such as ``[web_search]``. Each setting is declared
here with its type, bounds, default and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct, field

from . import groups
from .folders import data_folder
from .mcp import McpServer
from .options import AUTO_SWITCH, Switch


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long responses and what belongs to them are kept."""

    days: Annotated[
        float, groups.storage("Age in days at which responses are deleted. 0: never.", ge=0)
    ] = 30
    events_s: Annotated[
        float,
        groups.storage(
            (
                "Number of seconds for which the events of a background run are kept after "
                "its end, for clients that resume the stream. 0: as long as the response is "
                "kept."
            ),
            ge=0,
        ),
    ] = 3600
    responses: Annotated[
        int,
        groups.storage(
            (
                "Maximum number of stored responses of all tenants together. If there are more, "
                "the oldest responses of the tenant with the most data are deleted. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    bytes: Annotated[
        int,
        groups.storage(
            (
                "Maximum size in bytes of the stored responses of all tenants together. If they "
                "are larger, the oldest responses of the tenant with the most data are deleted. "
                "0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    usage_days: Annotated[
        float,
        groups.storage(
            ("Number of days for which the usage statistics of requests are kept. 0: for ever."),
            ge=0,
        ),
    ] = 400
    audit_days: Annotated[
        float,
        groups.storage(
            (
                "Number of days for which the audit log (who administered the server) is kept. "
                "0: for ever."
            ),
            ge=0,
        ),
    ] = 400


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """Webhooks that tell a client when a background response ends."""

    url: Annotated[
        str | None,
        groups.webhooks(
            "URL to which the server sends a webhook when a background response ends. It "
            "must begin with `https://`. Unset: no webhooks."
        ),
    ] = None
    secrets: Annotated[
        tuple[str, ...],
        groups.webhooks(
            (
                "Secrets with which webhooks are signed, required for webhooks: `whsec_` "
                "followed by 24 to 64 bytes in base64. During a rotation, set the new and the "
                "old secret: each webhook then has one signature for each secret."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    allow_private: Annotated[
        bool,
        groups.webhooks(
            "Allow a private address in `webhook.url`, and `http://` instead of `https://`."
        ),
    ] = False
    endpoints: Annotated[
        Literal["off", "public", "any"],
        groups.webhooks(
            "Whether clients may create webhook endpoints with `/v1/webhook_endpoints`. `public`: "
            "with public addresses and `https://`. `any`: also with addresses of this machine and "
            "of private networks, and with `http://`."
        ),
    ] = "off"


class SandboxSettings(Struct, frozen=True, kw_only=True):
    """Where code that models write (``code_interpreter``, ``shell``) runs."""

    kind: Annotated[
        str,
        groups.tools(
            (
                "Sandbox for code that models write (`code_interpreter`, `shell`). auto: "
                "bubblewrap, which needs Linux with unprivileged user namespaces; if it does not "
                "work, no code runs. kubernetes: pods of agent-sandbox (see kubernetes.md). off: "
                "no code runs. For a plug-in: the name of its entry point (see embedding.md)."
            ),
            kind='"auto", "off", "bubblewrap", "kubernetes" or the name of a plug-in',
            main=True,
        ),
    ] = "auto"
    warm_pool: Annotated[
        str,
        groups.tools(
            "If `sandbox.kind` is kubernetes: name of the SandboxWarmPool from which "
            "containers are taken."
        ),
    ] = "antiphon"
    namespace: Annotated[
        str | None,
        groups.tools(
            "Kubernetes namespace of the SandboxWarmPool. Unset: the namespace of the "
            "service account."
        ),
    ] = None
    router: Annotated[
        str | None,
        groups.tools(
            "URL of agent-sandbox's router, which forwards requests to the pods. Unset: "
            "requests go directly to the addresses of the pods."
        ),
    ] = None
    kubernetes_url: Annotated[str, groups.tools("URL of the Kubernetes API.")] = (
        "https://kubernetes.default.svc"
    )
    kubernetes_credentials: Annotated[
        Path,
        groups.tools(
            "Folder with the files `token`, `ca.crt` and `namespace` of a service account."
        ),
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    python: Annotated[
        Path | None,
        groups.tools(
            "Python interpreter that runs code in bubblewrap's sandbox, for example the "
            "interpreter of a virtual environment. The code can import the packages of this "
            "interpreter. Unset: the environment that `antiphon install data` makes, or else the "
            "system's Python."
        ),
    ] = None
    memory: Annotated[
        Literal["1g", "4g", "16g", "64g"],
        groups.tools(
            "Largest `memory_limit` that a request may set for a container. A container "
            "without `memory_limit` has 1g."
        ),
    ] = "1g"
    disk_mb: Annotated[
        int,
        groups.tools(
            (
                "Size in MiB of a container's folder `/mnt/data`. `/tmp` has additional space of "
                "the same size. Both are in memory."
            ),
            ge=1,
        ),
    ] = 256
    processes: Annotated[
        int,
        groups.tools(
            "Maximum number of processes and threads in a container of bubblewrap.", ge=8, le=32_768
        ),
    ] = 128
    idle_s: Annotated[
        float,
        groups.tools(
            (
                "Number of seconds without use after which a container expires. Requests may set "
                "a shorter time (`expires_after`)."
            ),
            gt=0,
        ),
    ] = 1200
    pool: Annotated[
        int,
        groups.tools(
            (
                "Number of bubblewrap sandboxes that are started in advance, so that a new "
                "container starts immediately. 0: none."
            ),
            ge=0,
        ),
    ] = 1
    domains: Annotated[
        tuple[str, ...],
        groups.tools(
            "Domains to which containers may connect, if a request allows it "
            "(`network_policy` of type `allowlist`). Connections go through a proxy of "
            "the server. `*`: all domains. Empty: containers have no network. See "
            "code-interpreter.md."
        ),
    ] = ()
    code_timeout_s: Annotated[
        float,
        groups.tools("Timeout in seconds for each execution of code or of a shell command.", gt=0),
    ] = 60


class ProgramSettings(Struct, frozen=True, kw_only=True):
    """Programs that models write to call tools (``programmatic_tool_calling``)."""

    enabled: Annotated[
        Switch,
        groups.tools(
            (
                "Let models write programs that call tools (`programmatic_tool_calling`). "
                "auto: on if the extra `programs` is installed. Programs run in "
                "WebAssembly, independently of the table `[sandbox]`."
            ),
            kind=AUTO_SWITCH,
            main=True,
        ),
    ] = "auto"
    cpu_timeout_s: Annotated[
        float,
        groups.tools(
            (
                "Maximum computing time of a program in seconds. The time in which the program "
                "waits for tool calls does not count."
            ),
            gt=0,
        ),
    ] = 5
    memory_mb: Annotated[int, groups.tools("Memory limit of a program in MiB.", ge=8, le=2048)] = 64
    max_calls: Annotated[
        int, groups.tools("Maximum number of tool calls that one program may make.", ge=1)
    ] = 128


class WebSearchSettings(Struct, frozen=True, kw_only=True):
    """The tool ``web_search``."""

    engine: Annotated[
        Literal["index", "ddgs", "exa", "tavily", "brave", "you", "searxng", "off"],
        groups.tools(
            "Backend of the tool `web_search`: a search engine, or `index` for the local "
            "index, which the command `antiphon index add` creates. off, or `index` without "
            "an index: the tool is unavailable.",
            main=True,
        ),
    ] = "index"
    index: Annotated[
        Path,
        groups.tools(
            "File of the local web search index.", default="~/.local/share/antiphon/web.db"
        ),
    ] = field(default_factory=lambda: data_folder() / "web.db")
    url: Annotated[
        str | None,
        groups.tools(
            "URL of the search engine's API. Required for searxng; no effect for ddgs. "
            "Unset: the public URL of the search engine."
        ),
    ] = None
    key: Annotated[
        str | None,
        groups.tools(
            "API key of the search engine. Required for exa, tavily, brave and you.",
            flag=None,
            secret=True,
        ),
    ] = None


class ImageGenerationSettings(Struct, frozen=True, kw_only=True):
    """The tool ``image_generation``. A server with OpenAI's Images API makes the images."""

    url: Annotated[
        str | None,
        groups.tools(
            "Base URL of a server with OpenAI's Images API, such as "
            "`http://127.0.0.1:9000/v1`. Unset: the tool is unavailable."
        ),
    ] = None
    key: Annotated[
        str | None, groups.tools("API key of the Images API.", flag=None, secret=True)
    ] = None
    model: Annotated[
        str | None,
        groups.tools(
            "Default image model, by its name at the Images API. Unset: the Images API chooses "
            "the model."
        ),
    ] = None
    models: Annotated[
        dict[str, str],
        groups.tools(
            (
                "Other values that requests may set in the tool's field `model`: value in the "
                "request → image model."
            ),
            flag=None,
            kind="a table",
        ),
    ] = {}
    options: Annotated[
        dict[str, Any],
        groups.tools(
            "Additional options of the Images API; see image-generation.md.",
            flag=None,
            kind="a table",
        ),
    ] = {}
    max_pixels: Annotated[
        int, groups.tools("Maximum number of pixels of an image that a request asks for.", ge=1)
    ] = 4 * 2**20
    max_bytes: Annotated[
        int,
        groups.tools(
            "Maximum size in bytes of each generated image, and of each image that is edited.", ge=1
        ),
    ] = 32 * 2**20
    parallel: Annotated[
        int,
        groups.tools(
            ("Maximum number of images that are generated at the same time. Further images wait."),
            ge=1,
        ),
    ] = 4


class McpSettings(Struct, frozen=True, kw_only=True):
    """The tool ``mcp`` and the MCP servers that requests may use by name."""

    enabled: Annotated[
        Switch,
        groups.tools(
            "Call tools of MCP servers. auto: on if the extra `mcp` is installed.",
            kind=AUTO_SWITCH,
            main=True,
        ),
    ] = "auto"
    servers: Annotated[
        dict[str, McpServer],
        groups.tools(
            "MCP servers that requests may use by name: `[mcp.servers.NAME]` tables.",
            flag=None,
            kind="tables [mcp.servers.NAME]",
        ),
    ] = field(default_factory=dict)
    urls: Annotated[
        bool,
        groups.tools(
            "Allow requests to name MCP servers by URL (`server_url`). The servers must have "
            "public addresses, or addresses in `mcp.allowed_networks`."
        ),
    ] = True
    allowed_networks: Annotated[
        tuple[str, ...],
        groups.tools(
            "Private addresses and networks that are allowed for MCP servers in "
            "requests (`server_url`), in addition to public addresses. Example: "
            "`127.0.0.1`."
        ),
    ] = ()
    unreachable: Annotated[
        Literal["fail", "continue"],
        groups.tools(
            "What happens if the tools of an MCP server cannot be listed. `fail`: the "
            "response ends with an error (HTTP status 424), as in OpenAI's API. "
            "`continue`: the model answers without these tools."
        ),
    ] = "fail"
    connect_s: Annotated[
        float,
        groups.tools(
            "Timeout in seconds for connecting to an MCP server and opening a session.", gt=0
        ),
    ] = 20
    call_s: Annotated[
        float, groups.tools("Timeout in seconds for each call to an MCP server.", gt=0)
    ] = 120
    idle_s: Annotated[
        float,
        groups.tools(
            (
                "Number of seconds for which an MCP session stays open after its last use. 0: it "
                "is closed at once."
            ),
            ge=0,
        ),
    ] = 300
    max_sessions: Annotated[
        int,
        groups.tools(
            (
                "Maximum number of open MCP sessions of a process. If there are more, unused "
                "sessions are closed, beginning with those of the tenant that has the most. "
                "Sessions in use stay open."
            ),
            ge=1,
        ),
    ] = 64


class FileSearchSettings(Struct, frozen=True, kw_only=True):
    """The tool ``file_search``, which searches in vector stores."""

    enabled: Annotated[
        bool,
        groups.tools(
            "Run the tool `file_search`, which searches in this server's vector stores. "
            "false: the tool is unavailable.",
            main=True,
        ),
    ] = True
    embeddings: Annotated[
        str,
        groups.tools(
            (
                "Name of a served embedding model for semantic search in vector stores. auto: "
                "the model of the extra `embeddings`; if the extra is not installed, the same as "
                "off. off: only full-text search."
            ),
            kind='"auto", "off" or the name of a model',
        ),
    ] = "auto"
    reranker: Annotated[
        str,
        groups.tools(
            (
                "Name of a served reranking model that reorders the results of searches in "
                "vector stores. Requests can name another `ranker`. off: no model reorders the "
                "results, unless a request names one."
            ),
            kind='"off" or the name of a model',
        ),
    ] = "off"


class ToolPrices(Struct, frozen=True, kw_only=True):
    """What calls of tools cost, for the costs of the usage."""

    web_search: Annotated[
        float, groups.tools("Price of a thousand searches of the web in US dollars.", ge=0)
    ] = 0
    file_search: Annotated[
        float, groups.tools("Price of a thousand searches in files in US dollars.", ge=0)
    ] = 0
    code_interpreter: Annotated[
        float, groups.tools("Price of a thousand runs of code in US dollars.", ge=0)
    ] = 0


class AudioSettings(Struct, frozen=True, kw_only=True):
    """The endpoints below ``/v1/audio``. Their models are in ``[models.NAME]``."""

    input_transcription: Annotated[
        str | None,
        groups.answers(
            "Name of a model that writes down the recordings (`input_audio`) of requests to models "
            "that cannot hear. Unset: such requests are refused."
        ),
    ] = None
    max_bytes: Annotated[
        int, groups.limits("Maximum size in bytes of a recording at `/v1/audio`.", ge=1)
    ] = 25 * 2**20
    max_seconds: Annotated[
        int,
        groups.limits("Maximum length in seconds of a recording for a model of this server.", ge=1),
    ] = 3600


class ChatSettings(Struct, frozen=True, kw_only=True):
    """The server to which commands such as ``antiphon chat`` connect."""

    url: Annotated[
        str | None,
        groups.chat(
            (
                "URL of the server to which commands such as `antiphon chat` connect. Unset: the "
                "address in `host` and `port` or, if no server runs there, the server that such "
                "a command used last."
            ),
            flag="--url",
        ),
    ] = None
    model: Annotated[
        str | None,
        groups.chat(
            (
                "Name of the model for `antiphon chat` and `antiphon launch`. Unset: `chat` uses "
                "the server's default model, `launch` the first model that the server lists."
            ),
            flag="--model",
        ),
    ] = None
    key: Annotated[
        str | None,
        groups.chat(
            "API key that commands such as `antiphon chat` send to the server.",
            flag="--key",
            secret=True,
        ),
    ] = None
