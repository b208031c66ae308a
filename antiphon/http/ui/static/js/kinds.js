// Generated from antiphon/stream/kinds.py by `make docs`. Do not edit.

/** Delta event → the field of the item to which it appends. */
export const TEXT_FIELDS = {
  "response.function_call_arguments.delta": "arguments",
  "response.custom_tool_call_input.delta": "input",
  "response.mcp_call_arguments.delta": "arguments",
  "response.code_interpreter_call_code.delta": "code",
};

/** Delta event → the list of parts, the index field of the event, a new part, and the field of the part to which the event appends. */
export const PART_TEXTS = {
  "response.output_text.delta": ["content", "content_index", {"type": "output_text", "text": "", "annotations": [], "logprobs": []}, "text"],
  "response.refusal.delta": ["content", "content_index", {"type": "refusal", "refusal": ""}, "refusal"],
  "response.reasoning_text.delta": ["content", "content_index", {"type": "reasoning_text", "text": ""}, "text"],
  "response.reasoning_summary_text.delta": ["summary", "summary_index", {"type": "summary_text", "text": ""}, "text"],
  "response.reasoning.delta": ["content", "content_index", {"type": "reasoning_text", "text": ""}, "text"],
};

/** Event with a whole part → the list of parts and the index field of the event. */
export const PARTS = {
  "response.content_part.added": ["content", "content_index"],
  "response.content_part.done": ["content", "content_index"],
  "response.reasoning_summary_part.added": ["summary", "summary_index"],
  "response.reasoning_summary_part.done": ["summary", "summary_index"],
};

/** Event without fields of its own → the status of the tool's call. */
export const STATUSES = {
  "response.mcp_list_tools.in_progress": "in_progress",
  "response.mcp_list_tools.completed": "completed",
  "response.mcp_list_tools.failed": "failed",
  "response.mcp_call.in_progress": "in_progress",
  "response.mcp_call.completed": "completed",
  "response.mcp_call.failed": "failed",
  "response.code_interpreter_call.in_progress": "in_progress",
  "response.code_interpreter_call.interpreting": "interpreting",
  "response.code_interpreter_call.completed": "completed",
  "response.web_search_call.in_progress": "in_progress",
  "response.web_search_call.searching": "searching",
  "response.web_search_call.completed": "completed",
  "response.file_search_call.in_progress": "in_progress",
  "response.file_search_call.searching": "searching",
  "response.file_search_call.completed": "completed",
  "response.image_generation_call.in_progress": "in_progress",
  "response.image_generation_call.generating": "generating",
  "response.image_generation_call.completed": "completed",
  "response.compaction.compacting": "compacting",
};

/** Types of the items that the model writes, without a tool's time between their tokens. */
export const STREAMED = [
  "message",
  "reasoning",
  "function_call",
  "custom_tool_call",
];
