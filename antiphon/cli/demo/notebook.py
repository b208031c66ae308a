"""An MCP server for the demo: a notebook that keeps notes in memory. The demo's server starts it as
a process."""

from __future__ import annotations


def main() -> None:
    """Answer MCP requests on stdin and stdout until the client closes them."""
    from mcp.server.mcpserver import MCPServer

    notes: list[str] = []
    server = MCPServer("notebook", log_level="CRITICAL")

    @server.tool()
    def save_note(text: str) -> str:
        """Save a note in the user's notebook."""
        notes.append(text)
        return f"Saved as note {len(notes)}."

    server.run()


if __name__ == "__main__":
    main()
