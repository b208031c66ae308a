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
    """Return Antiphon's folder in an XDG base directory.

    ``variable``: the environment variable that contains the path of the base directory. If the
    variable is not set or contains a relative path, the base directory is the subfolder
    ``otherwise`` of the home folder. The XDG specification requires that relative paths are
    ignored.
    """
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

    host: Annotated[
        str,
        _server(
            "IP address or host name at which the server listens. `0.0.0.0` and `::`: all "
            "addresses of the machine."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _server(
            (
                "Port at which the server listens. 0: the operating system chooses a free port. "
                "Commands such as `antiphon chat` connect to this port."
            ),
            ge=0,
            le=65535,
        ),
    ] = 8000
    workers: Annotated[
        int,
        _server(
            (
                "Number of processes that accept requests at `port`. Several processes use "
                "several CPU cores. They need a store in SQLite or PostgreSQL, which they share. "
                "See scaling.md."
            ),
            ge=1,
            le=64,
        ),
    ] = 1
    cors_origins: Annotated[
        tuple[str, ...],
        _server(
            "Origins of web pages, such as `https://app.example.com`, that may call the "
            'server from a browser (CORS). "*": all origins. Empty: only the web page of the '
            "server."
        ),
    ] = ()
    drain_s: Annotated[
        float,
        _server(
            (
                "Time in seconds that running requests get to finish when the server stops. A "
                "request that needs more time fails. A background run that needs more time "
                "continues on another server, or after the next start."
            ),
            ge=0,
        ),
    ] = 30
    lease_s: Annotated[
        float,
        _server(
            (
                "Lease on background runs, in seconds. If a server sends no heartbeat to the "
                "store for this time, other servers on the same store take over its background "
                "runs."
            ),
            ge=0.2,
        ),
    ] = 5
    replica_url: Annotated[
        str | None,
        _server(
            "URL at which other servers on the same PostgreSQL store can reach this server, "
            "such as `http://10.0.0.3:8000`. Through it, they use the containers of this "
            "server. Unset: the address in `host`. If that is `0.0.0.0` or `::`, other "
            "servers cannot use the containers. See scaling.md."
        ),
    ] = None
    replica_secret: Annotated[
        str | None,
        _server(
            (
                "Secret with which servers on the same store sign their calls to each other. It "
                "must be the same for all these servers. Unset: a secret that Antiphon creates "
                "in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = None
    metrics: Annotated[
        Literal["loopback", "everybody", "nobody"],
        _server(
            'Who may read `/metrics` without an API key. "loopback": clients on the same '
            'machine. "everybody": all clients. "nobody": no client.'
        ),
    ] = "loopback"
    metrics_export: Annotated[
        Literal["off", "otlp"],
        _server(
            '"otlp": also send OpenTelemetry metrics about generative AI to the collector at '
            "`otlp_endpoint`. Needs the extra `otel`."
        ),
    ] = "off"
    ui: Annotated[
        Literal["auto", "on", "off"],
        _server(
            "Whether the server has its web page at `/`, with a chat for the browser. "
            '"auto": only if `host` is a loopback address. See ui.md.'
        ),
    ] = "auto"
    traces: Annotated[
        Literal["off", "otlp"],
        _server(
            '"otlp": send OpenTelemetry traces to the collector at `otlp_endpoint`. Needs '
            "the extra `otel`."
        ),
    ] = "off"
    otlp_endpoint: Annotated[
        str | None,
        _server(
            "Base URL of the OpenTelemetry collector (OTLP over HTTP). Unset: the "
            "environment variable `OTEL_EXPORTER_OTLP_ENDPOINT`. If that is not set either: "
            "`http://localhost:4318`."
        ),
    ] = None
    trace_content: Annotated[
        bool,
        _server(
            "Include the texts of prompts and answers in traces. false: traces contain "
            "times, names, ids and token counts, but no such texts."
        ),
    ] = False
    log_format: Annotated[
        Literal["human", "json"],
        _server(
            "Format of the log: text for people (`human`), or one JSON object per line (`json`)."
        ),
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _server("Lowest level of the messages that are logged."),
    ] = "info"
    stall_log_ms: Annotated[
        int,
        _server(
            (
                "Time in milliseconds. If the event loop is blocked for longer, the server logs "
                "the stack of the blocking code and increments `antiphon_loop_stalls_total`. A "
                "wait for a CPU counts too, but is logged at most every ten minutes. 0: off."
            ),
            ge=0,
        ),
    ] = 100

    models: Annotated[
        dict[str, Model],
        _models(
            (
                "Models to serve: `[models.NAME]` tables in the file, or `NAME=SOURCE` separated "
                "by commas in the environment variable. If the command line names models, only "
                "these are served."
            ),
            flag=None,
            default=f"{DEFAULT_MODEL}, downloaded on first use",
            kind="tables [models.NAME]",
        ),
    ] = field(default_factory=lambda: {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)})
    default_model: Annotated[
        str | None,
        _models(
            "Name of the model for requests that name no model. Unset: the first model in "
            "the settings that is neither for embeddings nor for reranking."
        ),
    ] = None
    threads: Annotated[
        int,
        _models(
            "Number of CPU threads for each model whose own setting `threads` is not set.",
            default="all cores but one",
            ge=1,
        ),
    ] = field(default_factory=_spare_cores)
    cache_dir: Annotated[
        Path, _models("Folder for downloaded models.", default="~/.cache/antiphon/models")
    ] = field(default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models")

    model_memory_mb: Annotated[
        int,
        _models(
            (
                "Limit in MiB for the estimated memory of all loaded models together. If a "
                "request needs a model that does not fit, the least recently used models are "
                "unloaded as soon as their running requests have ended. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    formats_dir: Annotated[
        Path | None,
        _models(
            "Folder with your own model formats: `*.toml` files that describe how a model "
            "writes tool calls and reasoning. See models.md."
        ),
    ] = None

    store: Annotated[
        str,
        _storage(
            (
                "Store for responses and all other data: the path of a SQLite file, `memory:` "
                "(a temporary file, lost when the server stops), `postgresql://…` (several "
                "servers can share it), or the URL of a plug-in (see embedding.md)."
            ),
            default="~/.local/share/antiphon/responses.db",
        ),
    ] = field(default_factory=lambda: str(_home("XDG_DATA_HOME", ".local/share") / "responses.db"))
    store_connections: Annotated[
        int,
        _storage(
            (
                "Maximum number of connections of each process to PostgreSQL. One more "
                "connection receives notifications."
            ),
            ge=2,
            le=1000,
        ),
    ] = 10
    store_listen_url: Annotated[
        str | None,
        _storage(
            (
                "URL of the same PostgreSQL database for the connection that receives "
                "notifications. Needed if the URL in `store` leads to a connection pooler in "
                "transaction mode. Unset: the URL in `store`."
            ),
            secret=True,
        ),
    ] = None
    bus: Annotated[
        str | None,
        _storage(
            (
                "Message bus that sends new events of background runs to other processes on the "
                "same PostgreSQL store: `redis://HOST:PORT` for Redis or Valkey, `rediss://` with "
                "TLS. Needs the extra `redis`. Unset: PostgreSQL sends them. See scaling.md."
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
            "Encrypt contents before they are written to the object storage or folder in "
            "`files`, with the first key in `encryption_keys`. Contents that are there "
            "already do not change."
        ),
    ] = False
    response_blob_bytes: Annotated[
        int,
        _storage(
            (
                "If the input, output and token ids of a response together have at least this "
                "number of bytes, they are stored where `files` says, and not in PostgreSQL. Has "
                "no effect if `files` is `store` or the store is not PostgreSQL. 0: all "
                "responses stay in PostgreSQL."
            ),
            ge=0,
        ),
    ] = 1 << 20
    files_signed_urls_s: Annotated[
        int,
        _storage(
            (
                "Lifetime in seconds of signed URLs of the object storage. Downloads of "
                "unencrypted files of up to 8 MiB are redirected to such URLs. 0: all downloads "
                "go through the server."
            ),
            ge=0,
            le=604_800,
        ),
    ] = 0
    vectors: Annotated[
        Literal["exact", "pgvector"],
        _storage(
            "How vector stores find the vectors nearest to a query. exact: the process compares "
            "the query with all vectors. pgvector: an extension of PostgreSQL searches them, for "
            "vector stores of more than 100,000 chunks. See file-search.md."
        ),
    ] = "exact"
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
        float, _storage("Age in days at which responses are deleted. 0: never.", ge=0)
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
                "Maximum number of stored responses of all tenants together. If there are more, "
                "the oldest responses of the tenant with the most data are deleted. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0
    retention_bytes: Annotated[
        int,
        _storage(
            (
                "Maximum size in bytes of the stored responses of all tenants together. If they "
                "are larger, the oldest responses of the tenant with the most data are deleted. "
                "0: no limit."
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
        _storage(
            (
                "Number of days for which the audit log (who administered the server) is kept. "
                "0: for ever."
            ),
            ge=0,
        ),
    ] = 400

    webhook_url: Annotated[
        str | None,
        _hooks(
            "URL to which the server sends a webhook when a background response ends. It "
            "must begin with `https://`. Unset: no webhooks."
        ),
    ] = None
    webhook_secrets: Annotated[
        tuple[str, ...],
        _hooks(
            (
                "Secrets with which webhooks are signed, required for webhooks: `whsec_` "
                "followed by 24 to 64 bytes in base64. During a rotation, set the new and the "
                "old secret: each webhook then has one signature for each secret."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    webhook_allow_private: Annotated[
        bool,
        _hooks("Allow a private address in `webhook_url`, and `http://` instead of `https://`."),
    ] = False

    keys: Annotated[
        tuple[ApiKey, ...],
        _access(
            (
                "API keys: `[[keys]]` tables in the file, or `TENANT=SHA256` separated by commas "
                "in the environment variable. If there are none and `stored_keys` is false, "
                "every client that can reach the server may use it."
            ),
            flag=None,
            kind="tables [[keys]]",
        ),
    ] = ()
    stored_keys: Annotated[
        bool,
        _access(
            "Also accept API keys from the store. Operators can create, rotate and revoke "
            "them while the server runs. Every request then needs a key, even if there is no "
            "key yet."
        ),
    ] = False
    tenants: Annotated[
        dict[str, Tenant],
        _access(
            "Quotas and limits of individual tenants: `[tenants.NAME]` tables.",
            flag=None,
            kind="tables [tenants.NAME]",
        ),
    ] = field(default_factory=dict)
    keep_prefixes: Annotated[
        Literal["auto", "memory", "disk"],
        _models(
            "Where `llama` keeps the states of prompts that other prompts have displaced (see "
            "engines.md). `memory`: only in main memory. `disk`: also in files, so that stored "
            "conversations continue without delay after a restart. `auto`: `disk` if the store is "
            "a SQLite file. The files are next to this file, or else in `cache_dir`. They are "
            "encrypted if `encryption_keys` is set."
        ),
    ] = "auto"
    keep_prefixes_mb: Annotated[
        int,
        _models(
            "Disk space in MiB for the states of each model. A state that takes more than a "
            "quarter of it is not written. 0: none.",
            ge=0,
        ),
    ] = 2048
    share_prefix_cache: Annotated[
        bool | None,
        _access(
            "Let tenants share the prefix caches of engines. This is faster if the prompts "
            "of several tenants have the same beginning. But `cached_tokens` and response "
            "times then reveal whether another tenant has sent this beginning. Unset: true "
            "only if `stored_keys` is false and all keys belong to one tenant."
        ),
    ] = None
    encryption_keys: Annotated[
        tuple[str, ...],
        _access(
            (
                "Keys that encrypt data which clients keep and send back, such as reasoning and "
                "compacted conversations. Each is `ID:SECRET`, with a secret of 32 bytes in "
                "base64. The first key encrypts new data. All keys can decrypt data. Empty: a "
                "key that Antiphon creates in the store."
            ),
            flag=None,
            secret=True,
        ),
    ] = ()
    prompt_editors: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may read and change stored prompts. If the server "
            "needs no API keys, every client on the same machine may do this."
        ),
    ] = ()
    operators: Annotated[
        tuple[str, ...],
        _access(
            "Names of the API keys that may manage the running server: its models, its "
            "stored API keys and the data of tenants. They may also read the settings, the "
            "audit log and the usage of all tenants. If the server needs no API keys, every "
            "client on the same machine may do this."
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool,
        _access(
            "Allow a server that needs no API keys to listen at an address that other "
            "machines can reach. false: such a server starts only if `host` is a loopback "
            "address."
        ),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        _access(
            "Host names that the `Host` header may contain in requests that come from the "
            "same machine and need no API key. `localhost` and IP addresses are always "
            'allowed. "*": all names. This check prevents DNS rebinding.'
        ),
    ] = ()
    requests_per_minute: Annotated[
        int,
        _access(
            (
                "Maximum number of requests per minute for each API key that has no limit of its "
                "own. If the server needs no API keys: for all clients together. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    max_body_bytes: Annotated[
        int,
        _limits(
            (
                "Maximum size of a request body in bytes. Uploaded files have another limit, "
                "`max_file_bytes`."
            ),
            ge=1,
        ),
    ] = 64 * 2**20
    max_file_bytes: Annotated[
        int,
        _limits(
            (
                "Maximum size in bytes of an uploaded file, and of a file that the server "
                "fetches from a URL."
            ),
            ge=1,
        ),
    ] = 64 * 2**20
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
                "Maximum total size in bytes of the stored responses of a tenant. If it is "
                "reached, new responses are refused. 0: no limit."
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
        int, _limits("Maximum nesting depth of the JSON in a request body.", ge=8, le=400)
    ] = 64
    max_concurrent_requests: Annotated[
        int,
        _limits(
            (
                "Maximum number of requests to models that are processed at the same time. "
                "Further requests wait in a queue."
            ),
            ge=1,
        ),
    ] = 256
    max_background_runs: Annotated[
        int,
        _limits(
            (
                "Maximum number of background runs that this server executes at the same time. "
                "Further runs are queued."
            ),
            ge=1,
        ),
    ] = 64
    max_connections_per_address: Annotated[
        int,
        _limits(
            (
                "Maximum number of open connections from one IP address to one process of the "
                "server. Loopback addresses are not limited. Increase it if many clients use the "
                "same proxy. 0: no limit."
            ),
            ge=0,
        ),
    ] = 2048
    max_queued_requests: Annotated[
        int,
        _limits(
            (
                "Maximum number of requests that wait because `max_concurrent_requests` is "
                "reached. If there are more, requests are answered with HTTP status 429."
            ),
            ge=0,
        ),
    ] = 1024
    max_tenant_share: Annotated[
        float,
        _limits(
            (
                "Largest share of `max_concurrent_requests` and of `max_background_runs` that "
                "one tenant may use. The rest stays free for other tenants. Has no effect if "
                "`stored_keys` is false and all API keys belong to one tenant. 1: no limit."
            ),
            ge=0.01,
            le=1,
        ),
    ] = 0.75

    fetch_urls: Annotated[
        _Switch,
        _fetching(
            (
                "Fetch images and files that requests name by URL. Only public addresses and "
                "those in `fetch_allowed_networks` are allowed. auto: on if the extra `fetch` is "
                "installed."
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
                "bubblewrap, which needs Linux with unprivileged user namespaces; if it does not "
                "work, no code runs. kubernetes: pods of agent-sandbox (see kubernetes.md). off: "
                "no code runs. For a plug-in: the name of its entry point (see embedding.md)."
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
            "Python interpreter that runs code in bubblewrap's sandbox, for example the "
            "interpreter of a virtual environment. The code can import the packages of this "
            "interpreter. Unset: the system's Python."
        ),
    ] = None
    sandbox_memory: Annotated[
        Literal["1g", "4g", "16g", "64g"],
        _tools(
            "Largest `memory_limit` that a request may set for a container. A container "
            "without `memory_limit` has 1g."
        ),
    ] = "1g"
    sandbox_disk_mb: Annotated[
        int,
        _tools(
            (
                "Size in MiB of a container's folder `/mnt/data`. `/tmp` has additional space of "
                "the same size. Both are in memory."
            ),
            ge=1,
        ),
    ] = 256
    sandbox_processes: Annotated[
        int,
        _tools(
            "Maximum number of processes and threads in a container of bubblewrap.", ge=8, le=32_768
        ),
    ] = 128
    sandbox_idle_s: Annotated[
        float,
        _tools(
            (
                "Number of seconds without use after which a container expires. Requests may set "
                "a shorter time (`expires_after`)."
            ),
            gt=0,
        ),
    ] = 1200
    sandbox_pool: Annotated[
        int,
        _tools(
            (
                "Number of bubblewrap sandboxes that are started in advance, so that a new "
                "container starts immediately. 0: none."
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
    code_timeout_s: Annotated[
        float, _tools("Timeout in seconds for each execution of code or of a shell command.", gt=0)
    ] = 60
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
                "Maximum computing time of a program in seconds. The time in which the program "
                "waits for tool calls does not count."
            ),
            gt=0,
        ),
    ] = 5
    program_memory_mb: Annotated[
        int, _tools("Memory limit of a program in MiB.", ge=8, le=2048)
    ] = 64
    max_program_calls: Annotated[
        int, _tools("Maximum number of tool calls that one program may make.", ge=1)
    ] = 128

    web_search: Annotated[
        Literal["index", "ddgs", "exa", "tavily", "brave", "you", "searxng", "off"],
        _tools(
            "Backend of the tool `web_search`: a search engine, or `index` for the local "
            "index, which the command `antiphon index add` creates. off, or `index` without "
            "an index: the tool is unavailable."
        ),
    ] = "index"
    web_index: Annotated[
        Path,
        _tools("File of the local web search index.", default="~/.local/share/antiphon/web.db"),
    ] = field(default_factory=lambda: _home("XDG_DATA_HOME", ".local/share") / "web.db")
    web_search_url: Annotated[
        str | None,
        _tools(
            "URL of the search engine's API. Required for searxng; no effect for ddgs. "
            "Unset: the public URL of the search engine."
        ),
    ] = None
    web_search_key: Annotated[
        str | None,
        _tools(
            "API key of the search engine. Required for exa, tavily, brave and you.",
            flag=None,
            secret=True,
        ),
    ] = None
    image_generation: Annotated[
        Literal["off", "images_api", "diffusers"],
        _tools(
            "Backend of the tool `image_generation`: a server with OpenAI's Images API "
            "(`images_api`), or a diffusers model in this process (`diffusers`, needs the "
            "extra `diffusers`). off: the tool is unavailable."
        ),
    ] = "off"
    image_generation_url: Annotated[
        str | None,
        _tools(
            "Base URL of the Images API, such as `http://127.0.0.1:9000/v1`. Required for "
            "`images_api`."
        ),
    ] = None
    image_generation_key: Annotated[
        str | None, _tools("API key of the Images API.", flag=None, secret=True)
    ] = None
    image_generation_model: Annotated[
        str | None,
        _tools(
            "Default image model: its name at the Images API, or the folder or repository of "
            "a diffusers model. Required for `diffusers`. Unset: the Images API chooses the "
            "model."
        ),
    ] = None
    image_generation_models: Annotated[
        dict[str, str],
        _tools(
            (
                "Other values that requests may set in the tool's field `model`: value in the "
                "request → image model."
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
        int, _tools("Maximum number of pixels of an image that a request asks for.", ge=1)
    ] = 4 * 2**20
    image_generation_max_bytes: Annotated[
        int,
        _tools(
            "Maximum size in bytes of each generated image, and of each image that is edited.", ge=1
        ),
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
            "Allow requests to name MCP servers by URL (`server_url`). The servers must have "
            "public addresses, or addresses in `mcp_allowed_networks`."
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
        float,
        _tools("Timeout in seconds for connecting to an MCP server and opening a session.", gt=0),
    ] = 20
    mcp_call_s: Annotated[
        float, _tools("Timeout in seconds for each call to an MCP server.", gt=0)
    ] = 120
    mcp_idle_s: Annotated[
        float,
        _tools(
            (
                "Number of seconds for which an MCP session stays open after its last use. 0: it "
                "is closed at once."
            ),
            ge=0,
        ),
    ] = 300
    mcp_max_sessions: Annotated[
        int,
        _tools(
            (
                "Maximum number of open MCP sessions of a process. If there are more, unused "
                "sessions are closed, beginning with those of the tenant that has the most. "
                "Sessions in use stay open."
            ),
            ge=1,
        ),
    ] = 64
    file_search: Annotated[
        bool,
        _tools(
            "Run the tool `file_search`, which searches in this server's vector stores. "
            "false: the tool is unavailable."
        ),
    ] = True
    file_search_embeddings: Annotated[
        str,
        _tools(
            (
                "Name of a served embedding model for semantic search in vector stores. auto: "
                "the model of the extra `embeddings`; if the extra is not installed, the same as "
                "off. off: only full-text search."
            ),
            kind='"auto", "off" or the name of a model',
        ),
    ] = "auto"
    file_search_reranker: Annotated[
        str,
        _tools(
            (
                "Name of a served reranking model that reorders the results of searches in "
                "vector stores. Requests can name another `ranker`. off: no model reorders the "
                "results, unless a request names one."
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
            (
                "Maximum total time in seconds in which the server-side tool calls of a response "
                "run. When this time is used up, running calls are stopped. The time in which the "
                "model generates does not count. 0: no limit."
            ),
            ge=0,
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
    tool_timeout_s: Annotated[
        float, _tools("Timeout in seconds for each call of a server-side tool.", gt=0)
    ] = 300

    unavailable_tools: Annotated[
        Literal["ignore", "refuse"],
        _answers(
            "What happens if a request contains a hosted tool that this server does not run. "
            "`ignore`: the tool is left out of the prompt, and the response names it in "
            "`ignored_tools`. `refuse`: the request is rejected with HTTP status 400."
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
            (
                "Number of seconds without events after which a stream sends a keepalive: a "
                "`keepalive` event, or an SSE comment if clients would reject the event."
            ),
            gt=0,
        ),
    ] = 15
    upstream_start_wait_s: Annotated[
        float,
        _answers(
            (
                "Number of seconds for which a stream waits for the first output of the upstream "
                "before it starts; longer while Antiphon retries a refused request. If the "
                "upstream fails in this time, the client gets an HTTP error instead of a stream. "
                "0: the stream starts immediately."
            ),
            ge=0,
        ),
    ] = 3
    timeout_s: Annotated[
        float,
        _answers(
            (
                "Maximum duration of a response in seconds. A response that needs more time "
                "fails. 0: no limit."
            ),
            ge=0,
        ),
    ] = 0

    chat_url: Annotated[
        str | None,
        _chat(
            (
                "URL of the server to which commands such as `antiphon chat` connect. Unset: the "
                "address in `host` and `port` or, if no server runs there, the server that such "
                "a command used last."
            ),
            flag="--url",
        ),
    ] = None
    chat_model: Annotated[
        str | None,
        _chat(
            (
                "Name of the model for `antiphon chat` and `antiphon launch`. Unset: `chat` uses "
                "the server's default model, `launch` the first model that the server lists."
            ),
            flag="--model",
        ),
    ] = None
    chat_key: Annotated[
        str | None,
        _chat(
            "API key that commands such as `antiphon chat` send to the server.",
            flag="--key",
            secret=True,
        ),
    ] = None
