"""All settings of a server. Each setting is declared here with its type, bounds, default and help
text."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct, field

from .keys import ApiKey
from .mcp import McpServer
from .model import DEFAULT_MODEL, Model
from .options import AUTO_SWITCH, declare
from .tenants import Tenant

__all__ = ["Settings", "state_folder"]

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


#: Type of a setting for an optional feature. ``auto``: on if the feature is installed and works.
#: ``True``: the server does not start without the feature.
_Switch = bool | Literal["auto"]


def _spare_cores() -> int:
    return max(1, (os.cpu_count() or 2) - 1)


def _home(variable: str, otherwise: str) -> Path:
    """Return Antiphon's folder in an XDG base directory. ``variable``: the environment variable
    with the base directory. ``otherwise``: the default below the home folder. A relative path in
    the variable is ignored, as the XDG specification says."""
    value = os.environ.get(variable, "")  # noqa: TID251
    return (Path(value) if Path(value).is_absolute() else Path.home() / otherwise) / "antiphon"


def state_folder() -> Path:
    """Return the folder for data that commands store for later calls, such as the address of the
    last server."""
    return _home("XDG_STATE_HOME", ".local/state")


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a server. A limit or time of 0 means no limit."""

    @property
    def shares_prefix_cache(self) -> bool:
        """Whether tenants share the prefix caches of engines. If the setting is not set, they share
        them only if all keys belong to one tenant."""
        if self.share_prefix_cache is None:
            return not self.stored_keys and len({key.tenant for key in self.keys}) <= 1
        return self.share_prefix_cache

    host: Annotated[str, _server("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _server("Port to listen on; 0 picks a free one.", ge=0, le=65535)] = 8000
    workers: Annotated[
        int,
        _server(
            "Processes that serve the port together, for more than one CPU core. They need a store "
            "that processes share: SQLite or PostgreSQL. See scaling.md.",
            ge=1,
            le=64,
        ),
    ] = 1
    cors_origins: Annotated[
        tuple[str, ...],
        _server('Origins whose web pages may call the server (CORS); "*" for all.'),
    ] = ()
    drain_s: Annotated[
        float, _server("Seconds that running requests get to finish when the server stops.", ge=0)
    ] = 30
    lease_s: Annotated[
        float,
        _server(
            (
                "Lease in seconds: if a server sends no heartbeat for this long, other "
                "servers on the same store take over its background runs."
            ),
            ge=0.2,
        ),
    ] = 5
    replica_url: Annotated[
        str | None,
        _server(
            "URL at which other servers on the same PostgreSQL reach this one, such as "
            "`http://10.0.0.3:8000`, to use the containers that it runs. Unset: the address that "
            "it listens at, unless that is every address of the machine. See scaling.md."
        ),
    ] = None
    replica_secret: Annotated[
        str | None,
        _server(
            "Secret that signs the calls of servers to each other, the same for all of them. "
            "Unset: one that is kept in the store.",
            flag=None,
            secret=True,
        ),
    ] = None
    metrics: Annotated[
        Literal["loopback", "everybody", "nobody"],
        _server("Who may read `/metrics` without a key."),
    ] = "loopback"
    metrics_names: Annotated[
        Literal["antiphon", "responses", "vllm"],
        _server(
            'Show metrics under other names as well: "responses" for those of version 0.1, "vllm" '
            "for vLLM's."
        ),
    ] = "antiphon"
    metrics_export: Annotated[
        Literal["off", "otlp"],
        _server("Send OpenTelemetry metrics to an OTLP collector (extra `otel`)."),
    ] = "off"
    ui: Annotated[
        Literal["auto", "on", "off"],
        _server(
            'The web page at `/`. "auto" serves it if `host` is a loopback address. See ui.md.'
        ),
    ] = "auto"
    traces: Annotated[
        Literal["off", "otlp"],
        _server("Send OpenTelemetry traces to an OTLP collector (extra `otel`)."),
    ] = "off"
    otlp_endpoint: Annotated[
        str | None,
        _server(
            "The collector's address. Default: `OTEL_EXPORTER_OTLP_ENDPOINT`, else"
            " `http://localhost:4318`."
        ),
    ] = None
    trace_content: Annotated[
        bool, _server("Traces contain prompts and answers, not only counts and times.")
    ] = False
    log_format: Annotated[
        Literal["human", "json"], _server("Log format: for people, or JSON lines.")
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _server("Minimum log level.")
    ] = "info"
    stall_log_ms: Annotated[
        int,
        _server(
            "Milliseconds. If the event loop is blocked for longer, the place that blocks it is "
            "logged and `antiphon_loop_stalls_total` is counted, also if it had to wait for a "
            "processor of a busy machine. 0 turns this off.",
            ge=0,
        ),
    ] = 100

    models: Annotated[
        dict[str, Model],
        _models(
            (
                "Models to serve: `[models.NAME]` tables, or comma-separated `NAME=SOURCE` in "
                "the environment. Models named on the command line replace the configured "
                "ones."
            ),
            flag=None,
            default=f"{DEFAULT_MODEL}, downloaded on first use",
            kind="tables [models.NAME]",
        ),
    ] = field(default_factory=lambda: {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)})
    default_model: Annotated[
        str | None, _models("Model for requests that name none. Unset: the first.")
    ] = None
    threads: Annotated[
        int, _models("CPU threads of each model.", default="all cores but one", ge=1)
    ] = field(default_factory=_spare_cores)
    cache_dir: Annotated[
        Path, _models("Folder for downloaded models.", default="~/.cache/antiphon/models")
    ] = field(default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models")

    model_memory_mb: Annotated[
        int,
        _models(
            "Memory in MiB that loaded models may use together, by estimate; 0 for no limit. If "
            "the next model does not fit, the least recently used ones are unloaded, after their "
            "running requests.",
            ge=0,
        ),
    ] = 0

    formats_dir: Annotated[
        Path | None,
        _models(
            "Folder with custom model formats: `*.toml` files that describe how a model "
            "writes tool calls and reasoning. See models.md."
        ),
    ] = None

    store: Annotated[
        str,
        _storage(
            (
                "Store for responses: a SQLite file, `memory:`, `postgresql://…` for several "
                "servers, or the URL of a plug-in. See embedding.md."
            ),
            default="~/.local/share/antiphon/responses.db",
        ),
    ] = field(default_factory=lambda: str(_home("XDG_DATA_HOME", ".local/share") / "responses.db"))
    store_connections: Annotated[
        int,
        _storage(
            "Connections of a process to PostgreSQL, besides the one that listens.", ge=2, le=1000
        ),
    ] = 10
    store_listen_url: Annotated[
        str | None,
        _storage(
            "URL of the same PostgreSQL for the connection that listens, if `store` leads through a"
            " pooler in transaction mode.",
            secret=True,
        ),
    ] = None
    bus: Annotated[
        str | None,
        _storage(
            "Message bus that brings new events of background runs to other processes of a "
            "PostgreSQL store: `nats://HOST:PORT` or `redis://HOST:PORT`, with TLS `tls://` or "
            "`rediss://`. Needs the extra `nats` or `redis`. See scaling.md.",
            secret=True,
        ),
    ] = None
    files: Annotated[
        str,
        _storage(
            "Where the contents of uploaded files are: the `store`, object storage (`s3://`, "
            "`gs://` or `az://`, BUCKET/PREFIX) or a folder (`file:///FOLDER`). All but the store "
            "need the extra `objects`. See files.md.",
        ),
    ] = "store"
    files_options: Annotated[
        dict[str, str],
        _storage(
            "Options of the object storage, such as `endpoint`, `region`, `access_key_id` and "
            "`secret_access_key`; `$NAME` takes a value from the environment. Unset ones come from "
            "the standard variables `AWS_…`, `AZURE_…` and `GOOGLE_APPLICATION_CREDENTIALS`.",
            flag=None,
            secret=True,
        ),
    ] = field(default_factory=dict)
    files_encrypted: Annotated[
        bool,
        _storage(
            "Encrypt new contents in the object storage with the first of the `encryption_keys`."
        ),
    ] = False
    response_blob_bytes: Annotated[
        int,
        _storage(
            "If `files` is not the store: responses of a PostgreSQL store whose input, output and "
            "tokens take at least so many bytes keep these there, too; 0: none.",
            ge=0,
        ),
    ] = 1 << 20
    files_signed_urls_s: Annotated[
        int,
        _storage(
            "Seconds for which a download may be redirected to a signed URL of the object storage; "
            "0: all downloads go through this server.",
            ge=0,
            le=604_800,
        ),
    ] = 0
    vectors: Annotated[
        str,
        _storage(
            'How vector stores find nearest vectors: "exact" compares them all, in this process. '
            'With a PostgreSQL store, for more than 100,000 chunks: "pgvector", its extension, or '
            "`qdrant://HOST:PORT`, a Qdrant server, with TLS `qdrants://`, which needs the extra "
            "`qdrant`. See file-search.md.",
        ),
    ] = "exact"
    vectors_key: Annotated[
        str | None, _storage("API key of the Qdrant server.", flag=None, secret=True)
    ] = None
    prompts_dir: Annotated[
        Path,
        _storage(
            "Folder of stored prompts: `ID/VERSION.toml`, shared by all tenants.",
            default="~/.local/share/antiphon/prompts",
        ),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "prompts")
    retention_days: Annotated[
        float, _storage("Days after which responses are deleted; 0 keeps them forever.", ge=0)
    ] = 30
    retention_events_s: Annotated[
        float,
        _storage(
            (
                "Seconds that the events of a background run stay available after its end, "
                "for clients that resume the stream; 0 for as long as the response."
            ),
            ge=0,
        ),
    ] = 3600
    retention_responses: Annotated[
        int, _storage("Maximum number of stored responses; 0 for no limit.", ge=0)
    ] = 0
    retention_bytes: Annotated[
        int, _storage("Maximum size of stored responses in bytes; 0 for no limit.", ge=0)
    ] = 0

    retention_usage_days: Annotated[
        float,
        _storage(
            "Days for which the sums of what requests used are kept; 0 keeps them forever.", ge=0
        ),
    ] = 400

    retention_audit_days: Annotated[
        float,
        _storage("Days for which the audit log is kept; 0 keeps it forever.", ge=0),
    ] = 400

    webhook_url: Annotated[
        str | None,
        _hooks("URL that receives webhooks when background responses end. Unset: no webhooks."),
    ] = None
    webhook_secrets: Annotated[
        tuple[str, ...],
        _hooks(
            "Signing secrets of webhooks: `whsec_` and base64. Several during rotation.",
            flag=None,
            secret=True,
        ),
    ] = ()
    webhook_allow_private: Annotated[
        bool, _hooks("Allow `webhook_url` to be a private address, also without TLS.")
    ] = False

    keys: Annotated[
        tuple[ApiKey, ...],
        _access(
            (
                "API keys: `[[keys]]` tables, or comma-separated `TENANT=SHA256` in the "
                "environment. Without any, every client that reaches the server may use it."
            ),
            flag=None,
            kind="tables [[keys]]",
        ),
    ] = ()
    stored_keys: Annotated[
        bool,
        _access(
            "API keys are also in the store, where they can be created, rotated and revoked while "
            "the server runs. Every request then needs a key."
        ),
    ] = False
    tenants: Annotated[
        dict[str, Tenant],
        _access(
            "Quotas of single tenants: `[tenants.NAME]` tables.",
            flag=None,
            kind="tables [tenants.NAME]",
        ),
    ] = field(default_factory=dict)
    share_prefix_cache: Annotated[
        bool | None,
        _access(
            "Let tenants share the engines' prefix caches. Faster where their prompts begin alike, "
            "but `cached_tokens` and response times then reveal whether another tenant sent the "
            "same beginning. Unset: only if the keys name a single tenant."
        ),
    ] = None
    encryption_keys: Annotated[
        tuple[str, ...],
        _access(
            (
                "Encryption keys for data that clients hold (reasoning, compacted "
                "conversations): `ID:SECRET` with a secret of 32 bytes in base64. The first "
                "key encrypts, all decrypt. Unset: a key kept in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    prompt_editors: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may read and change stored prompts. Without API "
            "keys: every client on this machine."
        ),
    ] = ()
    operators: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may manage the server at run time: load, unload and "
            "download models, and read the usage of all tenants. Without API keys: every client on "
            "this machine."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool, _access("Allow listening on a public address without API keys.")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        _access(
            "Allowed `Host` header values of a server without API keys, in addition to "
            '`localhost` and IP addresses; "*" for any. Others are rejected, which '
            "prevents DNS rebinding."
        ),
    ] = ()
    requests_per_minute: Annotated[
        int,
        _access(
            "Requests per minute for each key, or in total without keys; 0 for no limit.", ge=0
        ),
    ] = 0

    max_body_bytes: Annotated[int, _limits("Maximum size of a request body in bytes.", ge=1)] = (
        64 * 2**20
    )
    max_file_bytes: Annotated[int, _limits("Maximum size of an uploaded file in bytes.", ge=1)] = (
        64 * 2**20
    )
    max_responses: Annotated[
        int,
        _limits(
            (
                "Maximum number of stored responses of a tenant; 0 for no limit. Unlike "
                "`retention_responses`, which deletes old ones, it refuses new ones."
            ),
            ge=0,
        ),
    ] = 0
    max_responses_bytes: Annotated[
        int,
        _limits(
            "Size of a tenant's stored responses in bytes from which on no more are accepted; 0 "
            "for no limit.",
            ge=0,
        ),
    ] = 0
    max_files: Annotated[
        int, _limits("Maximum number of files of a tenant; 0 for no limit.", ge=0)
    ] = 100_000
    max_files_bytes: Annotated[
        int,
        _limits(
            (
                "Maximum total size of a tenant's files, of its pending uploads and of its skills, "
                "each in bytes; 0 for no limit."
            ),
            ge=0,
        ),
    ] = 10 * 2**30
    max_vector_stores: Annotated[
        int, _limits("Maximum number of vector stores of a tenant; 0 for no limit.", ge=0)
    ] = 10_000
    max_items: Annotated[int, _limits("Maximum number of input items in a request.", ge=1)] = 10_000
    max_tools: Annotated[int, _limits("Maximum number of tools in a request.", ge=1)] = 1_024
    max_nesting: Annotated[
        int, _limits("Maximum nesting depth of a request's JSON.", ge=8, le=400)
    ] = 64
    max_concurrent_requests: Annotated[
        int, _limits("Maximum number of requests processed concurrently.", ge=1)
    ] = 256
    max_background_runs: Annotated[
        int,
        _limits(
            "Maximum number of background runs executed concurrently; others are queued.", ge=1
        ),
    ] = 64
    max_connections_per_address: Annotated[
        int,
        _limits(
            (
                "Maximum number of open connections from one address; 0 for no limit. Loopback "
                "addresses have none. Raise it for a proxy that many clients share."
            ),
            ge=0,
        ),
    ] = 2048
    max_queued_requests: Annotated[
        int, _limits("Maximum number of queued requests; further ones are answered with 429.", ge=0)
    ] = 1024
    max_tenant_share: Annotated[
        float,
        _limits(
            (
                "Largest share of `max_concurrent_requests` and of `max_background_runs` that one "
                "tenant may hold, if the API keys belong to several tenants. The rest stays free "
                "for the others. 1 for no limit."
            ),
            ge=0.01,
            le=1,
        ),
    ] = 0.75

    fetch_urls: Annotated[
        _Switch,
        _fetching(
            "Fetch images and files that requests name by URL, from public addresses "
            "only. auto: if the extra `fetch` is installed.",
            kind=AUTO_SWITCH,
        ),
    ] = "auto"
    fetch_allowed_networks: Annotated[
        tuple[str, ...],
        _fetching(
            "Private addresses and networks that may be fetched from as well, such as "
            "`10.1.0.0/16`."
        ),
    ] = ()

    sandbox: Annotated[
        str,
        _tools(
            (
                "Sandbox for code written by models (`code_interpreter`, `shell`). auto: "
                "bubblewrap where it works, which needs Linux with unprivileged user namespaces. "
                "kubernetes: pods of agent-sandbox, see kubernetes.md. A plug-in is named by its "
                "entry point. See embedding.md."
            ),
            kind='"auto", "off", "bubblewrap", "kubernetes" or the name of a plug-in',
        ),
    ] = "auto"
    sandbox_warm_pool: Annotated[
        str, _tools("If `sandbox` is kubernetes: the SandboxWarmPool that containers come from.")
    ] = "antiphon"
    sandbox_namespace: Annotated[
        str | None, _tools("The namespace of the pool. Unset: that of the service account.")
    ] = None
    sandbox_router: Annotated[
        str | None,
        _tools(
            "URL of agent-sandbox's router, which passes requests on to the pods. Unset: the pods "
            "are reached by their addresses."
        ),
    ] = None
    kubernetes_url: Annotated[str, _tools("URL of the Kubernetes API.")] = (
        "https://kubernetes.default.svc"
    )
    kubernetes_credentials: Annotated[
        Path, _tools("Folder with `token`, `ca.crt` and `namespace` of a service account.")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    sandbox_python: Annotated[
        Path | None,
        _tools(
            "Python interpreter for sandboxed code, with the packages it may use, for "
            "example of a virtual environment. Unset: the system's."
        ),
    ] = None
    sandbox_memory: Annotated[
        Literal["1g", "4g", "16g", "64g"], _tools("Maximum memory that a container may request.")
    ] = "1g"
    sandbox_disk_mb: Annotated[
        int, _tools("Size of a container's files in MiB; they are held in memory.", ge=1)
    ] = 256
    sandbox_processes: Annotated[
        int, _tools("Maximum number of processes and threads in a container.", ge=8, le=32_768)
    ] = 128
    sandbox_idle_s: Annotated[
        float, _tools("Seconds without use after which a container expires.", gt=0)
    ] = 1200
    sandbox_pool: Annotated[
        int,
        _tools(
            "Number of idle sandboxes kept ready, so that a new container starts at once.", ge=0
        ),
    ] = 1
    sandbox_domains: Annotated[
        tuple[str, ...],
        _tools(
            "Domains that requests may let containers reach (`network_policy` of type "
            "`allowlist`), through a proxy of the server; `*` for any. Empty: containers have no "
            "network. See code-interpreter.md."
        ),
    ] = ()
    code_timeout_s: Annotated[float, _tools("Timeout of one code execution, in seconds.", gt=0)] = (
        60
    )
    max_containers: Annotated[
        int, _tools("Maximum number of active containers of a tenant; 0 for no limit.", ge=0)
    ] = 16

    programs: Annotated[
        _Switch,
        _tools(
            "Let models write programs that call tools (`programmatic_tool_calling`). auto: if "
            "the extra `programs` is installed. Programs run in WebAssembly, independent "
            "of `sandbox`.",
            kind=AUTO_SWITCH,
        ),
    ] = "auto"
    program_cpu_timeout_s: Annotated[
        float,
        _tools(
            (
                "Seconds of computation a program may use between two tool calls. Waiting for "
                "tool calls does not count."
            ),
            gt=0,
        ),
    ] = 5
    program_memory_mb: Annotated[
        int, _tools("Memory limit of a program in MiB.", ge=8, le=2048)
    ] = 64
    max_program_calls: Annotated[
        int, _tools("Maximum number of tool calls a program may make.", ge=1)
    ] = 128

    web_search: Annotated[
        Literal["index", "ddgs", "exa", "tavily", "brave", "you", "searxng", "off"],
        _tools(
            "Backend of `web_search`: the local index made by `antiphon index add`, once "
            "there is one, or a search engine."
        ),
    ] = "index"
    web_index: Annotated[
        Path,
        _tools("File of the local web search index.", default="~/.local/share/antiphon/web.db"),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "web.db")
    web_search_url: Annotated[
        str | None, _tools("URL of the search engine's API. Unset: its public address.")
    ] = None
    web_search_key: Annotated[
        str | None, _tools("API key of the search engine.", flag=None, secret=True)
    ] = None
    image_generation: Annotated[
        Literal["off", "images_api", "diffusers"],
        _tools(
            "Backend of `image_generation`: a server with OpenAI's Images API, or a "
            "diffusers model in this process (needs the extra `diffusers`)."
        ),
    ] = "off"
    image_generation_url: Annotated[
        str | None, _tools("Base URL of the Images API, such as `http://127.0.0.1:9000/v1`.")
    ] = None
    image_generation_key: Annotated[
        str | None, _tools("API key of the Images API.", flag=None, secret=True)
    ] = None
    image_generation_model: Annotated[
        str | None,
        _tools("Image model: its name at the Images API, or a diffusers folder or repository."),
    ] = None
    image_generation_models: Annotated[
        dict[str, str],
        _tools(
            (
                "Additional values that requests may give as the tool's `model`, and the "
                "models they select."
            ),
            flag=None,
            kind="a table",
        ),
    ] = {}
    image_generation_options: Annotated[
        dict[str, Any],
        _tools(
            "Additional options of the image backend; see image-generation.md.",
            flag=None,
            kind="a table",
        ),
    ] = {}
    image_generation_max_pixels: Annotated[
        int, _tools("Maximum number of pixels of a requested image.", ge=1)
    ] = 4 * 2**20
    image_generation_max_bytes: Annotated[
        int, _tools("Maximum size of an image in bytes.", ge=1)
    ] = 32 * 2**20
    image_generation_parallel: Annotated[
        int, _tools("Number of images generated concurrently; others wait.", ge=1)
    ] = 4
    tool_options: Annotated[
        dict[str, Any],
        _tools(
            ("Options of tools from other packages: one table per tool, `[tool_options.NAME]`."),
            flag=None,
            kind="a table",
        ),
    ] = {}
    mcp: Annotated[
        _Switch,
        _tools(
            "Call tools of MCP servers. auto: if the extra `mcp` is installed.", kind=AUTO_SWITCH
        ),
    ] = "auto"
    mcp_servers: Annotated[
        dict[str, McpServer],
        _tools(
            "MCP servers that requests may use by name: `[mcp_servers.NAME]` tables.",
            flag=None,
            kind="tables [mcp_servers.NAME]",
        ),
    ] = field(default_factory=dict)
    mcp_urls: Annotated[
        bool,
        _tools("Allow requests to name MCP servers by URL (`server_url`), at public addresses."),
    ] = True
    mcp_allowed_networks: Annotated[
        tuple[str, ...],
        _tools(
            "Private addresses and networks where MCP servers named by requests may be as "
            "well, such as `127.0.0.1`."
        ),
    ] = ()
    mcp_unreachable: Annotated[
        Literal["fail", "continue"],
        _tools(
            "What happens if the tools of an MCP server cannot be listed: `fail` ends the response "
            "with an error (HTTP 424), as OpenAI's API does; `continue` answers without them."
        ),
    ] = "fail"
    mcp_connect_s: Annotated[
        float, _tools("Timeout for connecting to an MCP server, in seconds.", gt=0)
    ] = 20
    mcp_call_s: Annotated[
        float, _tools("Timeout of a call to an MCP server, in seconds.", gt=0)
    ] = 120
    mcp_idle_s: Annotated[
        float,
        _tools("Seconds that an MCP session is kept open after its conversation used it.", ge=0),
    ] = 300
    mcp_max_sessions: Annotated[
        int,
        _tools(
            "Maximum number of open MCP sessions. If there are more, unused ones are closed, first "
            "those of the tenant that has most.",
            ge=1,
        ),
    ] = 64
    file_search: Annotated[
        bool,
        _tools(
            "Run the `file_search` tool over this server's vector stores. Off: the tool "
            "counts as unavailable."
        ),
    ] = True
    file_search_embeddings: Annotated[
        str,
        _tools(
            "Served embedding model for semantic search in vector stores. auto: the model of the "
            "extra `embeddings`, if it is installed. off: full-text search only.",
            kind='"auto", "off" or the name of a model',
        ),
    ] = "auto"
    file_search_reranker: Annotated[
        str,
        _tools(
            "Served reranking model that ranks the results of searches in vector stores, unless a "
            "request names another `ranker`. off: results are ranked by words and meaning only.",
            kind='"off" or the name of a model',
        ),
    ] = "off"
    max_turns: Annotated[
        int,
        _tools("Maximum number of model calls in one response that uses server-side tools.", ge=1),
    ] = 32
    max_tool_time_s: Annotated[
        float, _tools("Maximum total seconds of tool calls in a response; 0 for no limit.", ge=0)
    ] = 0
    on_tool_limit: Annotated[
        Literal["answer", "incomplete"],
        _tools(
            "When a response reaches `max_turns`, `max_tool_time_s` or the request's "
            "`max_tool_calls`: let the model answer without further tool calls, or end "
            "the response as incomplete."
        ),
    ] = "answer"
    tool_timeout_s: Annotated[float, _tools("Timeout of one tool call, in seconds.", gt=0)] = 300

    unavailable_tools: Annotated[
        Literal["ignore", "refuse"],
        _answers(
            "Hosted tools in a request that this server does not run: leave them out of "
            "the prompt and report them, or reject the request with 400."
        ),
    ] = "ignore"
    undecryptable_items: Annotated[
        Literal["drop", "refuse"],
        _answers(
            "Encrypted items that this server cannot decrypt: leave them out and report "
            "them in `input_transformations`, or reject the request with 400."
        ),
    ] = "drop"
    reasoning_events: Annotated[
        Literal["openai", "open_responses"],
        _answers(
            "Names of raw reasoning events: `response.reasoning_text.*` (OpenAI) or "
            "`response.reasoning.*` (Open Responses)."
        ),
    ] = "openai"
    reasoning_summaries: Annotated[
        Literal["excerpt", "model"],
        _answers(
            "Reasoning summaries (`reasoning.summary`): the headings and first sentences of the "
            "reasoning, while the model reasons; or written by a model (`summary_model`) "
            "afterwards."
        ),
    ] = "excerpt"
    summary_model: Annotated[
        str | None,
        _answers(
            'Model that writes reasoning summaries if `reasoning_summaries = "model"`. Unset: '
            "the model that reasoned."
        ),
    ] = None
    keepalive_s: Annotated[
        float,
        _answers("Seconds without events after which a stream sends a `keepalive` event.", gt=0),
    ] = 15
    upstream_start_wait_s: Annotated[
        float,
        _answers(
            (
                "Seconds a stream waits for the upstream's first event before it starts, so "
                "that an error of the upstream is an HTTP error; 0 starts at once."
            ),
            ge=0,
        ),
    ] = 3
    timeout_s: Annotated[
        float, _answers("Maximum duration of a response in seconds; 0 for no limit.", ge=0)
    ] = 0

    chat_url: Annotated[
        str | None,
        _chat("Server to talk to. Unset: `host` and `port`.", flag="--url"),
    ] = None
    chat_model: Annotated[
        str | None, _chat("Model to talk to. Unset: the server's default.", flag="--model")
    ] = None
    chat_key: Annotated[str | None, _chat("API key to send.", flag="--key", secret=True)] = None
