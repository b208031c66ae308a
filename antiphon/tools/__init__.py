"""Server-side tools: the contract, and one module or package per tool type."""
