"""Where time passes: runs, their logs and their readers; the only home of asyncio tasks."""
