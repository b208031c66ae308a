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

__all__ = ["Settings", "runtime_folder", "state_folder"]

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
    with the base directory. ``otherwise``: path of the base directory below the home folder, if the
    variable is not set. A relative path in the variable is ignored, as the XDG specification
    says."""
    value = os.environ.get(variable, "")  # noqa: TID251
    return (Path(value) if Path(value).is_absolute() else Path.home() / otherwise) / "antiphon"


def state_folder() -> Path:
    """Return the folder in which the ``antiphon`` commands store data for later commands, such as
    the address of the server that was used last."""
    return _home("XDG_STATE_HOME", ".local/state")


def runtime_folder() -> Path:
    """Return the folder for the sockets of this user's servers on this host. It is a subfolder of
    the folder that XDG_RUNTIME_DIR names, or, if this variable is not set, of the folder for
    temporary files. The subfolder may not exist yet."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))  # noqa: TID251
    if runtime.is_absolute():
        return runtime / "antiphon"
    temporary = os.environ.get("TMPDIR", "") or "/tmp"  # noqa: TID251
    return Path(temporary) / f"antiphon-{os.geteuid()}"


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a server. A limit or time of 0 means no limit."""

    @property
    def shares_prefix_cache(self) -> bool:
        """Whether tenants share the prefix caches of engines. If the setting ``share_prefix_cache``
        is not set, the caches are shared only if the server can have no second tenant: there are no
        keys in the store, and all keys in the settings belong to one tenant."""
        if self.share_prefix_cache is None:
            return not self.stored_keys and len({key.tenant for key in self.keys}) <= 1
        return self.share_prefix_cache

    host: Annotated[str, _server("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _server("Port to listen on. 0: a free port.", ge=0, le=65535)] = 8000
    workers: Annotated[
        int,
        _server(
            (
                "Number of processes that serve the port together, to use more than one CPU "
                "core. Several processes need a store that they can share: SQLite or "
                "PostgreSQL. See scaling.md."
            ),
            ge=1,
            le=64,
        ),
    ] = 1
    cors_origins: Annotated[
        tuple[str, ...],
        _server('Origins of web pages that may call the server (CORS). "*": all origins.'),
    ] = ()
    drain_s: Annotated[
        float,
        _server(
            ("Number of seconds that running requests have to finish when the server stops."), ge=0
        ),
    ] = 30
    lease_s: Annotated[
        float,
        _server(
            (
                "Lease in seconds. If a server sends no heartbeat to the store for this "
                "time, other servers on the same store take over its background runs."
            ),
            ge=0.2,
        ),
    ] = 5
    replica_url: Annotated[
        str | None,
        _server(
            "URL at which other servers on the same PostgreSQL store can reach this "
            "server, such as `http://10.0.0.3:8000`. They use it for the containers of "
            "this server. Unset: the address in `host`. If `host` means all addresses "
            "of the machine, other servers cannot use the containers. See scaling.md."
        ),
    ] = None
    replica_secret: Annotated[
        str | None,
        _server(
            (
                "Secret with which servers on the same store sign their calls to each "
                "other. All these servers need the same secret. Unset: a secret in the "
                "store."
            ),
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
            'Additional names under which metrics are shown: "responses" for the names '
            'of version 0.1, "vllm" for the names that vLLM uses.'
        ),
    ] = "antiphon"
    metrics_export: Annotated[
        Literal["off", "otlp"],
        _server("Send OpenTelemetry metrics to an OTLP collector (extra `otel`)."),
    ] = "off"
    ui: Annotated[
        Literal["auto", "on", "off"],
        _server(
            'Serve the web page at `/`. "auto": only if `host` is a loopback address. See ui.md.'
        ),
    ] = "auto"
    traces: Annotated[
        Literal["off", "otlp"],
        _server("Send OpenTelemetry traces to an OTLP collector (extra `otel`)."),
    ] = "off"
    otlp_endpoint: Annotated[
        str | None,
        _server(
            "Address of the OTLP collector. Unset: the environment variable "
            "`OTEL_EXPORTER_OTLP_ENDPOINT`, or `http://localhost:4318` if the variable "
            "is not set."
        ),
    ] = None
    trace_content: Annotated[
        bool,
        _server(
            "Include prompts and answers in traces. Otherwise traces contain only counts and times."
        ),
    ] = False
    log_format: Annotated[
        Literal["human", "json"],
        _server(
            "Format of the log: text for people (`human`), or one JSON object per line (`json`)."
        ),
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _server("Minimum log level.")
    ] = "info"
    stall_log_ms: Annotated[
        int,
        _server(
            (
                "If the event loop is blocked for more than this number of milliseconds, "
                "the server logs the blocking line of code and increments "
                "`antiphon_loop_stalls_total`. This also happens if the process waits for a "
                "CPU of a busy machine. 0: off."
            ),
            ge=0,
        ),
    ] = 100

    models: Annotated[
        dict[str, Model],
        _models(
            (
                "Models to serve: `[models.NAME]` tables in the file, or `NAME=SOURCE` "
                "separated by commas in the environment variable. Models on the command "
                "line replace them."
            ),
            flag=None,
            default=f"{DEFAULT_MODEL}, downloaded on first use",
            kind="tables [models.NAME]",
        ),
    ] = field(default_factory=lambda: {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)})
    default_model: Annotated[
        str | None,
        _models(
            "Model for requests that name no model. Unset: the first model that answers "
            "conversations."
        ),
    ] = None
    threads: Annotated[
        int, _models("Number of CPU threads for each model.", default="all cores but one", ge=1)
    ] = field(default_factory=_spare_cores)
    cache_dir: Annotated[
        Path, _models("Folder for downloaded models.", default="~/.cache/antiphon/models")
    ] = field(default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models")

    model_memory_mb: Annotated[
        int,
        _models(
            (
                "Maximum memory in MiB for all loaded models together, as Antiphon estimates "
                "it. If another model does not fit, the least recently used models are "
                "unloaded as soon as their running requests have ended. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    formats_dir: Annotated[
        Path | None,
        _models(
            "Folder with your own model formats. They are `*.toml` files that describe "
            "how a model writes tool calls and reasoning. See models.md."
        ),
    ] = None

    store: Annotated[
        str,
        _storage(
            (
                "Store for responses and all other data: a SQLite file, `memory:`, "
                "`postgresql://…` (which several servers can share), or the URL of a "
                "plug-in. See embedding.md."
            ),
            default="~/.local/share/antiphon/responses.db",
        ),
    ] = field(default_factory=lambda: str(_home("XDG_DATA_HOME", ".local/share") / "responses.db"))
    store_connections: Annotated[
        int,
        _storage(
            (
                "Number of connections of each process to PostgreSQL. One more connection "
                "listens for notifications."
            ),
            ge=2,
            le=1000,
        ),
    ] = 10
    store_listen_url: Annotated[
        str | None,
        _storage(
            (
                "URL of the same PostgreSQL for the connection that listens for "
                "notifications. Needed if the URL in `store` is a connection pooler in "
                "transaction mode."
            ),
            secret=True,
        ),
    ] = None
    bus: Annotated[
        str | None,
        _storage(
            (
                "Message bus that sends new events of background runs to other processes on "
                "the same PostgreSQL store: `nats://HOST:PORT` or `redis://HOST:PORT`. With "
                "TLS: `tls://` or `rediss://`. Needs the extra `nats` or `redis`. See "
                "scaling.md."
            ),
            secret=True,
        ),
    ] = None
    files: Annotated[
        str,
        _storage(
            (
                "Where the contents of uploaded files are stored: in the store (`store`), "
                "in object storage (`s3://BUCKET/PREFIX`, also `gs://` and `az://`) or in a "
                "folder (`file:///FOLDER`). Object storage and folders need the extra "
                "`objects`. See files.md."
            ),
        ),
    ] = "store"
    files_options: Annotated[
        dict[str, str],
        _storage(
            (
                "Options of the object storage, such as `endpoint`, `region`, "
                "`access_key_id` and `secret_access_key`. A value `$NAME` is replaced by "
                "the environment variable `NAME`. Options that are not set here are read "
                "from the standard environment variables `AWS_…`, `AZURE_…` and "
                "`GOOGLE_APPLICATION_CREDENTIALS`."
            ),
            flag=None,
            secret=True,
        ),
    ] = field(default_factory=dict)
    files_encrypted: Annotated[
        bool,
        _storage(
            "Encrypt new contents in the object storage with the first key in `encryption_keys`."
        ),
    ] = False
    response_blob_bytes: Annotated[
        int,
        _storage(
            (
                "Size in bytes from which the input, output and tokens of a response are "
                "not stored in PostgreSQL, but in the storage that `files` names. Has no "
                "effect if `files` is `store`. 0: all responses stay in PostgreSQL."
            ),
            ge=0,
        ),
    ] = 1 << 20
    files_signed_urls_s: Annotated[
        int,
        _storage(
            (
                "Redirect downloads to signed URLs of the object storage that are valid for "
                "this number of seconds. 0: all downloads go through this server."
            ),
            ge=0,
            le=604_800,
        ),
    ] = 0
    vectors: Annotated[
        str,
        _storage(
            (
                'How vector stores find the nearest vectors. "exact" compares all vectors, '
                "in this process. For more than 100,000 chunks in a PostgreSQL store: "
                '"pgvector" (an extension of PostgreSQL), or a Qdrant server '
                "(`qdrant://HOST:PORT`, with TLS `qdrants://`), which needs the extra "
                "`qdrant`. See file-search.md."
            ),
        ),
    ] = "exact"
    vectors_key: Annotated[
        str | None, _storage("API key of the Qdrant server.", flag=None, secret=True)
    ] = None
    prompts_dir: Annotated[
        Path,
        _storage(
            (
                "Folder with stored prompts, which all tenants share. The file of a prompt "
                "is `ID/VERSION.toml`."
            ),
            default="~/.local/share/antiphon/prompts",
        ),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "prompts")
    retention_days: Annotated[
        float, _storage("Number of days after which responses are deleted. 0: never.", ge=0)
    ] = 30
    retention_events_s: Annotated[
        float,
        _storage(
            (
                "Number of seconds for which the events of a background run are kept after "
                "its end, for clients that resume the stream. 0: as long as the response is "
                "kept."
            ),
            ge=0,
        ),
    ] = 3600
    retention_responses: Annotated[
        int,
        _storage(
            (
                "Maximum number of stored responses. If there are more, old responses are "
                "deleted. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    retention_bytes: Annotated[
        int,
        _storage(
            (
                "Maximum total size of stored responses in bytes. If it is exceeded, old "
                "responses are deleted. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    retention_usage_days: Annotated[
        float,
        _storage(
            ("Number of days for which the usage statistics of requests are kept. 0: for ever."),
            ge=0,
        ),
    ] = 400

    retention_audit_days: Annotated[
        float,
        _storage("Number of days for which the audit log is kept. 0: for ever.", ge=0),
    ] = 400

    webhook_url: Annotated[
        str | None,
        _hooks("URL that receives webhooks when background responses end. Unset: no webhooks."),
    ] = None
    webhook_secrets: Annotated[
        tuple[str, ...],
        _hooks(
            (
                "Secrets that sign webhooks: `whsec_` followed by base64. Set several "
                "secrets during a rotation."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    webhook_allow_private: Annotated[
        bool, _hooks("Allow a private address in `webhook_url`, and a URL without TLS.")
    ] = False

    keys: Annotated[
        tuple[ApiKey, ...],
        _access(
            (
                "API keys: `[[keys]]` tables in the file, or `TENANT=SHA256` separated by "
                "commas in the environment variable. Without API keys, every client that "
                "can reach the server may use it."
            ),
            flag=None,
            kind="tables [[keys]]",
        ),
    ] = ()
    stored_keys: Annotated[
        bool,
        _access(
            "Also accept API keys from the store. They can be created, rotated and "
            "revoked while the server runs. Every request then needs a key."
        ),
    ] = False
    tenants: Annotated[
        dict[str, Tenant],
        _access(
            "Quotas and limits of single tenants: `[tenants.NAME]` tables.",
            flag=None,
            kind="tables [tenants.NAME]",
        ),
    ] = field(default_factory=dict)
    share_prefix_cache: Annotated[
        bool | None,
        _access(
            "Let tenants share the prefix caches of engines. This is faster if the "
            "prompts of several tenants have the same beginning. But `cached_tokens` "
            "and response times then reveal whether another tenant has sent this "
            "beginning. Unset: tenants share the caches only if all keys belong to one "
            "tenant."
        ),
    ] = None
    encryption_keys: Annotated[
        tuple[str, ...],
        _access(
            (
                "Encryption keys for data that clients keep, such as reasoning and "
                "compacted conversations: `ID:SECRET` with a secret of 32 bytes in base64. "
                "The first key encrypts new data. All keys can decrypt data. Unset: a key "
                "in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    prompt_editors: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may read and change stored prompts. If the "
            "server has no API keys, every client on the same machine may do this."
        ),
    ] = ()
    operators: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may manage the running server: load, unload and "
            "download models, and read the usage of all tenants. If the server has no "
            "API keys, every client on the same machine may do this."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool, _access("Allow listening on a public address without API keys.")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        _access(
            "Values of the `Host` header that a server without API keys accepts, in "
            'addition to `localhost` and IP addresses. "*": all values. Requests with '
            "other values are rejected, which prevents DNS rebinding."
        ),
    ] = ()
    requests_per_minute: Annotated[
        int,
        _access(
            (
                "Maximum number of requests per minute for each API key. If the server has "
                "no API keys: for all clients together. 0: no limit."
            ),
            ge=0,
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
                "Maximum number of stored responses of a tenant. If it is reached, new "
                "responses are refused. (`retention_responses` deletes old responses "
                "instead.) 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    max_responses_bytes: Annotated[
        int,
        _limits(
            (
                "If the stored responses of a tenant have this total size in bytes, new "
                "responses are refused. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    max_files: Annotated[
        int, _limits("Maximum number of files of a tenant. 0: no limit.", ge=0)
    ] = 100_000
    max_files_bytes: Annotated[
        int,
        _limits(
            (
                "Maximum total size in bytes of a tenant's files. The same limit applies "
                "separately to its pending uploads and to its skills. 0: no limit."
            ),
            ge=0,
        ),
    ] = 10 * 2**30
    max_vector_stores: Annotated[
        int, _limits("Maximum number of vector stores of a tenant. 0: no limit.", ge=0)
    ] = 10_000
    max_items: Annotated[int, _limits("Maximum number of input items in a request.", ge=1)] = 10_000
    max_tools: Annotated[int, _limits("Maximum number of tools in a request.", ge=1)] = 1_024
    max_nesting: Annotated[
        int, _limits("Maximum nesting depth of a request's JSON.", ge=8, le=400)
    ] = 64
    max_concurrent_requests: Annotated[
        int, _limits("Maximum number of requests that are processed at the same time.", ge=1)
    ] = 256
    max_background_runs: Annotated[
        int,
        _limits(
            (
                "Maximum number of background runs that are executed at the same time. "
                "Further runs are queued."
            ),
            ge=1,
        ),
    ] = 64
    max_connections_per_address: Annotated[
        int,
        _limits(
            (
                "Maximum number of open connections from one IP address. Loopback addresses "
                "are not limited. Increase it if many clients use the same proxy. 0: no "
                "limit."
            ),
            ge=0,
        ),
    ] = 2048
    max_queued_requests: Annotated[
        int,
        _limits(
            (
                "Maximum number of queued requests. Further requests are answered with HTTP "
                "status 429."
            ),
            ge=0,
        ),
    ] = 1024
    max_tenant_share: Annotated[
        float,
        _limits(
            (
                "Largest share of `max_concurrent_requests` and of `max_background_runs` "
                "that one tenant may use, if the API keys belong to several tenants. The "
                "remaining share stays free for other tenants. 1: no limit."
            ),
            ge=0.01,
            le=1,
        ),
    ] = 0.75

    fetch_urls: Annotated[
        _Switch,
        _fetching(
            (
                "Fetch images and files that requests name by URL. Only public addresses "
                "are fetched. auto: fetch if the extra `fetch` is installed."
            ),
            kind=AUTO_SWITCH,
        ),
    ] = "auto"
    fetch_allowed_networks: Annotated[
        tuple[str, ...],
        _fetching(
            "Private addresses and networks from which the server may fetch, in "
            "addition to public addresses. Example: `10.1.0.0/16`."
        ),
    ] = ()

    sandbox: Annotated[
        str,
        _tools(
            (
                "Sandbox for code that models write (`code_interpreter`, `shell`). auto: "
                "bubblewrap if it works, which needs Linux with unprivileged user "
                "namespaces. kubernetes: pods of agent-sandbox; see kubernetes.md. For a "
                "plug-in: the name of its entry point; see embedding.md."
            ),
            kind='"auto", "off", "bubblewrap", "kubernetes" or the name of a plug-in',
        ),
    ] = "auto"
    sandbox_warm_pool: Annotated[
        str,
        _tools(
            "If `sandbox` is kubernetes: name of the SandboxWarmPool from which "
            "containers are taken."
        ),
    ] = "antiphon"
    sandbox_namespace: Annotated[
        str | None,
        _tools(
            "Kubernetes namespace of the SandboxWarmPool. Unset: the namespace of the "
            "service account."
        ),
    ] = None
    sandbox_router: Annotated[
        str | None,
        _tools(
            "URL of agent-sandbox's router, which forwards requests to the pods. Unset: "
            "requests go directly to the addresses of the pods."
        ),
    ] = None
    kubernetes_url: Annotated[str, _tools("URL of the Kubernetes API.")] = (
        "https://kubernetes.default.svc"
    )
    kubernetes_credentials: Annotated[
        Path,
        _tools("Folder with the files `token`, `ca.crt` and `namespace` of a service account."),
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    sandbox_python: Annotated[
        Path | None,
        _tools(
            "Python interpreter that runs code in the sandbox, for example the "
            "interpreter of a virtual environment. The code can use the packages of "
            "this interpreter. Unset: the system's Python."
        ),
    ] = None
    sandbox_memory: Annotated[
        Literal["1g", "4g", "16g", "64g"], _tools("Maximum memory that a container may request.")
    ] = "1g"
    sandbox_disk_mb: Annotated[
        int, _tools("Maximum size of a container's files in MiB. The files are in memory.", ge=1)
    ] = 256
    sandbox_processes: Annotated[
        int, _tools("Maximum number of processes and threads in a container.", ge=8, le=32_768)
    ] = 128
    sandbox_idle_s: Annotated[
        float, _tools("Number of seconds without use after which a container expires.", gt=0)
    ] = 1200
    sandbox_pool: Annotated[
        int,
        _tools(
            (
                "Number of sandboxes that are started in advance. With them, a new "
                "container starts immediately."
            ),
            ge=0,
        ),
    ] = 1
    sandbox_domains: Annotated[
        tuple[str, ...],
        _tools(
            "Domains to which containers may connect, if a request allows it "
            "(`network_policy` of type `allowlist`). Connections go through a proxy of "
            "the server. `*`: all domains. Empty: containers have no network. See "
            "code-interpreter.md."
        ),
    ] = ()
    code_timeout_s: Annotated[float, _tools("Timeout of one code execution, in seconds.", gt=0)] = (
        60
    )
    max_containers: Annotated[
        int, _tools("Maximum number of active containers of a tenant. 0: no limit.", ge=0)
    ] = 16

    programs: Annotated[
        _Switch,
        _tools(
            (
                "Let models write programs that call tools (`programmatic_tool_calling`). "
                "auto: on if the extra `programs` is installed. Programs run in "
                "WebAssembly, independently of the setting `sandbox`."
            ),
            kind=AUTO_SWITCH,
        ),
    ] = "auto"
    program_cpu_timeout_s: Annotated[
        float,
        _tools(
            (
                "Maximum number of seconds that a program computes between two tool calls. Time "
                "in which a program waits for tool calls does not count."
            ),
            gt=0,
        ),
    ] = 5
    program_memory_mb: Annotated[
        int, _tools("Memory limit of a program in MiB.", ge=8, le=2048)
    ] = 64
    max_program_calls: Annotated[
        int, _tools("Maximum number of tool calls that a program may make.", ge=1)
    ] = 128

    web_search: Annotated[
        Literal["index", "ddgs", "exa", "tavily", "brave", "you", "searxng", "off"],
        _tools(
            "Backend of `web_search`: a search engine, or `index` for the local index. "
            "The command `antiphon index add` creates this index. Without an index, the "
            "tool is not available."
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
            "Backend of `image_generation`: a server with OpenAI's Images API "
            "(`images_api`), or a diffusers model in this process (`diffusers`, needs "
            "the extra `diffusers`)."
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
        _tools(
            "Image model: its name at the Images API, or the folder or repository of a "
            "diffusers model."
        ),
    ] = None
    image_generation_models: Annotated[
        dict[str, str],
        _tools(
            ("Additional names for the field `model` of the tool in requests: name → image model."),
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
        int,
        _tools(
            ("Maximum number of images that are generated at the same time. Further images wait."),
            ge=1,
        ),
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
            "Call tools of MCP servers. auto: on if the extra `mcp` is installed.", kind=AUTO_SWITCH
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
        _tools(
            "Allow requests to name MCP servers by URL (`server_url`). The servers must "
            "have public addresses."
        ),
    ] = True
    mcp_allowed_networks: Annotated[
        tuple[str, ...],
        _tools(
            "Private addresses and networks that are allowed for MCP servers in "
            "requests (`server_url`), in addition to public addresses. Example: "
            "`127.0.0.1`."
        ),
    ] = ()
    mcp_unreachable: Annotated[
        Literal["fail", "continue"],
        _tools(
            "What happens if the tools of an MCP server cannot be listed. `fail`: the "
            "response ends with an error (HTTP status 424), as in OpenAI's API. "
            "`continue`: the model answers without these tools."
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
        _tools("Number of seconds for which an MCP session stays open after its last use.", ge=0),
    ] = 300
    mcp_max_sessions: Annotated[
        int,
        _tools(
            (
                "Maximum number of open MCP sessions. If there are more, unused sessions "
                "are closed. The tenant with the most unused sessions loses sessions first."
            ),
            ge=1,
        ),
    ] = 64
    file_search: Annotated[
        bool,
        _tools(
            "Run the tool `file_search`, which searches in this server's vector stores. "
            "If it is off, the tool counts as unavailable."
        ),
    ] = True
    file_search_embeddings: Annotated[
        str,
        _tools(
            (
                "Name of a served embedding model for semantic search in vector stores. "
                "auto: the model of the extra `embeddings`, if the extra is installed. off: "
                "only full-text search."
            ),
            kind='"auto", "off" or the name of a model',
        ),
    ] = "auto"
    file_search_reranker: Annotated[
        str,
        _tools(
            (
                "Name of a served reranking model that ranks the results of searches in "
                "vector stores. Requests can name another `ranker`. off: results are ranked "
                "only by words and meaning."
            ),
            kind='"off" or the name of a model',
        ),
    ] = "off"
    max_turns: Annotated[
        int,
        _tools(
            ("Maximum number of model calls (turns) in one response that uses server-side tools."),
            ge=1,
        ),
    ] = 32
    max_tool_time_s: Annotated[
        float,
        _tools(
            ("Maximum total time of all tool calls in a response, in seconds. 0: no limit."), ge=0
        ),
    ] = 0
    on_tool_limit: Annotated[
        Literal["answer", "incomplete"],
        _tools(
            "What happens when a response reaches `max_turns`, `max_tool_time_s` or the "
            "request's `max_tool_calls`. `answer`: the model answers without further "
            "tool calls. `incomplete`: the response ends as incomplete."
        ),
    ] = "answer"
    tool_timeout_s: Annotated[float, _tools("Timeout of one tool call, in seconds.", gt=0)] = 300

    unavailable_tools: Annotated[
        Literal["ignore", "refuse"],
        _answers(
            "What happens if a request contains a hosted tool that this server does not "
            "run. `ignore`: the tool is left out of the prompt, and the response "
            "reports this. `refuse`: the request is rejected with HTTP status 400."
        ),
    ] = "ignore"
    undecryptable_items: Annotated[
        Literal["drop", "refuse"],
        _answers(
            "What happens if a request contains encrypted items that this server cannot "
            "decrypt. `drop`: they are left out, and the response reports this in "
            "`input_transformations`. `refuse`: the request is rejected with HTTP "
            "status 400."
        ),
    ] = "drop"
    reasoning_events: Annotated[
        Literal["openai", "open_responses"],
        _answers(
            "Names of the events with the raw text of reasoning: "
            "`response.reasoning_text.*` (`openai`), or `response.reasoning.*` "
            "(`open_responses`, as in the Open Responses specification)."
        ),
    ] = "openai"
    reasoning_summaries: Annotated[
        Literal["excerpt", "model"],
        _answers(
            "How reasoning summaries (`reasoning.summary`) are made. `excerpt`: they "
            "are the headings and first sentences of the reasoning, and are sent while "
            "the model reasons. `model`: a model (`summary_model`) writes them after "
            "the reasoning."
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
        _answers(
            ("Number of seconds without events after which a stream sends a `keepalive` event."),
            gt=0,
        ),
    ] = 15
    upstream_start_wait_s: Annotated[
        float,
        _answers(
            (
                "Maximum number of seconds that a stream waits for the first event of the "
                "upstream before it starts. If the upstream fails in this time, the client "
                "gets an HTTP error. 0: the stream starts immediately."
            ),
            ge=0,
        ),
    ] = 3
    timeout_s: Annotated[
        float, _answers("Maximum duration of a response in seconds. 0: no limit.", ge=0)
    ] = 0

    chat_url: Annotated[
        str | None,
        _chat(
            (
                "URL of the server to which commands such as `antiphon chat` connect. "
                "Unset: the address in `host` and `port`."
            ),
            flag="--url",
        ),
    ] = None
    chat_model: Annotated[
        str | None,
        _chat(
            ("Model that commands such as `antiphon chat` use. Unset: the server's default model."),
            flag="--model",
        ),
    ] = None
    chat_key: Annotated[
        str | None,
        _chat("API key that commands such as `antiphon chat` send.", flag="--key", secret=True),
    ] = None
