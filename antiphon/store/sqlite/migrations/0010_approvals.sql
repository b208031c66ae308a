-- The claims of MCP approvals: for each approval, the response that runs the approved tool call.
CREATE TABLE approvals (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    response TEXT NOT NULL,
    claimed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX approvals_by_time ON approvals (claimed_at);
