"""Server-side tools: the interface that every tool implements, and one module or package per tool
type."""
