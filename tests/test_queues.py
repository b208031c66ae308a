"""Each queue and lock of the package is known, and tenants take turns where they share it. Read
from the sources."""

from __future__ import annotations

import ast

from tests.sources import PACKAGE, modules_with, nodes
from tests.test_fair_shares import PARTS

#: What makes callers wait for each other.
_CLASSES = frozenset(
    {"FairLimiter", "FairThreads", "TurnThread", "ThreadPoolExecutor", "Semaphore", "Lock"}
    | {"Condition", "Queue", "SimpleQueue"}
)
#: Module → the parts of the fairness matrix that wait there.
PARTS_OF: dict[str, tuple[str, ...]] = {
    "attachments/documents.py": ("document_parsing",),
    "attachments/fetch.py": ("fetching",),
    "audio/decoding.py": ("audio_decoding",),
    "audio/program.py": ("speech",),
    "backends/validation/grammar_matcher.py": ("validation",),
    "embeddings/thread_worker.py": ("embedding",),
    "engines/common/grammar_state.py": ("costly_grammars",),
    "engines/llama/slots.py": ("generations",),
    "http/app.py": ("large_bodies",),
    "limits/admission.py": ("requests",),
    "resources/vector_search/indexer.py": ("indexing",),
    "sandbox/javascript.py": ("programs",),
    "store/sqlite/database.py": ("store_reads", "store_writes"),
    "support/fair_threads.py": ("threads", "costly_bodies", "embedding"),
    "tools/image_generation/provider.py": ("image_generation",),
    "tools/web_search/ddgs.py": ("web_searches",),
}
#: Module whose queues and locks are tested elsewhere → the test.
TESTED: dict[str, str] = {
    "audio/whisper.py": "tests/audio/test_whisper.py",
    "engines/common/continued_engine.py": "tests/engines/common/test_continued_engine.py",
    "engines/openvino/engine.py": "tests/engines/test_tenant_turns.py",
    "engines/transformers/engine.py": "tests/engines/test_tenant_turns.py",
    "engines/vllm.py": "tests/engines/test_vllm.py",
    "http/routes/websocket.py": "tests/http/server/test_message_memory.py",
    "models/added_models.py": "tests/models/test_added_models.py",
    "runs/batches/idle_gate.py": "tests/runs/batches/test_worker.py",
    "runs/batches/worker.py": "tests/runs/batches/test_worker.py",
    "store/postgres/pool.py": "tests/store/postgres/test_pool.py",
}
_ONE_USER = "belongs to one connection, response, container or batch"
_BRIEF = "is held while the process does little, which is the same for all tenants"
_SHARED = "those who wait get the result of the one that works"
#: Module → why tenants need no turns at its queues and locks.
NEEDS_NO_TURNS: dict[str, str] = {
    "backends/memory_budget.py": "models are loaded one after another, for the operator's limit",
    "config/reload.py": "the operator's reloads",
    "engines/llama/kept_states.py": _BRIEF,
    "engines/llama/process.py": _SHARED,
    "engines/openvino/process.py": _SHARED,
    "engines/openvino/worker.py": "the process of an engine, which has turns of its own",
    "engines/transformers/sequential.py": "the thread of an engine, which has turns of its own",
    "http/routes/reference.py": _SHARED,
    "http/server/websocket_protocol.py": _ONE_USER,
    "http/streaming/keepalive.py": _ONE_USER,
    "ipc/client.py": _SHARED,
    "models/manager.py": _ONE_USER,
    "oidc/provider.py": _SHARED,
    "resources/admin/recent_value.py": _SHARED,
    "runs/background/snapshots.py": _SHARED,
    "runs/batches/results.py": _ONE_USER,
    "runs/tool_loop/executor.py": _ONE_USER,
    "runs/usage_counter.py": _BRIEF,
    "sandbox/agent_client.py": _ONE_USER,
    "sandbox/egress/proxy.py": _ONE_USER,
    "sandbox/kubernetes/box.py": _ONE_USER,
    "support/logs.py": _BRIEF,
    "tools/containers/container.py": _ONE_USER,
    "tools/containers/handle.py": _ONE_USER,
    "tools/mcp/oauth.py": _SHARED,
    "tools/mcp/sessions.py": _ONE_USER,
    "tools/web_search/index.py": _BRIEF,
}


def makes_queue(node: ast.AST) -> bool:
    """Return whether a call makes a queue, a lock or a pool of threads."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    name = ast.unparse(function)
    return name.rpartition(".")[2] in _CLASSES and not name.startswith("threading.")


def test_queues_and_locks_are_known() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules_with(*_CLASSES)
        if path.parts[len(PACKAGE.parts)] != "testing"
        if any(map(makes_queue, nodes(path)))
    }
    assert found == {*PARTS_OF, *TESTED, *NEEDS_NO_TURNS}


def test_fairness_matrix_has_a_row_for_each_shared_queue() -> None:
    parts = {part.__name__ for part in PARTS}
    assert {name for names in PARTS_OF.values() for name in names} == parts


def test_other_tests_of_turns_exist() -> None:
    assert [name for name in TESTED.values() if not (PACKAGE.parent / name).exists()] == []
