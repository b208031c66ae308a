"""Background runs: claim and execute them, write and read their event logs, and recover interrupted
runs. A claim is the right of one server to execute a run."""
