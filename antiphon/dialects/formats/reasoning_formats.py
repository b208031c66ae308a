"""How model families write their thinking: one row each. The most telling marks come first."""

from __future__ import annotations

from collections.abc import Mapping

from .types import ReasoningFormat

__all__ = ["REASONING"]

REASONING: Mapping[str, ReasoningFormat] = {
    row.name: row
    for row in (
        ReasoningFormat(
            name="append_think", open=("<think>",), close=("</think>",), kept=True, mark=""
        ),
        ReasoningFormat(
            name="seed", open=("<seed:think>",), close=("</seed:think>",), mark="<seed:think>"
        ),
        ReasoningFormat(name="kimi", open=("◁think▷",), close=("◁/think▷",), mark="◁think▷"),
        ReasoningFormat(name="mistral", open=("[THINK]",), close=("[/THINK]",), mark=r"\[THINK\]"),
        ReasoningFormat(
            name="gemma4", open=("<|channel>thought",), close=("<channel|>",), mark=r"<\|channel>"
        ),
        ReasoningFormat(
            name="cohere",
            open=("<|START_THINKING|>",),
            close=("<|END_THINKING|>",),
            answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            frames=("<|START_TEXT|>", "<|END_TEXT|>"),
            mark=r"<\|START_THINKING\|>",
        ),
        ReasoningFormat(
            name="inkling",
            open=("<|content_thinking|>",),
            close=("<|end_message|>", "<|content_model_end_sampling|>"),
            answer=("<|content_text|>", "<|end_message|>"),
            header="<|message_model|>",
            mark=r"<\|content_thinking\|>",
        ),
        ReasoningFormat(
            name="muse",
            open=(" to=self<|message|>",),
            close=("<|eom|>",),
            answer=(" to=user<|message|>", "<|eot|>"),
            header="<|start|>assistant",
            mark="<atem:function_calls>",
        ),
        ReasoningFormat(
            name="beam",
            open=("<|channel|>analysis<|message|>",),
            close=("<|end|>",),
            answer=("<|channel|>final<|message|>", "<|end|>"),
            header="<|start|>assistant",
            mark="<rfl:parameter",
        ),
        ReasoningFormat(
            name="llm_jp",
            open=("<|channel|>analysis<|message|>", "<|channel|> analysis<|message|>"),
            close=("<|end|>",),
            answer=("<|channel|>final<|message|>", "<|end|>"),
            header="<|start|>assistant",
            frames=(
                "<|start|> assistant",
                "<|channel|>final<|message|> ",
                *("<|channel|> final<|message|>", "<|channel|> final<|message|> "),
                *("<|channel|>commentary<|message|>", "<|channel|>commentary<|message|> "),
                *("<|channel|> commentary<|message|>", "<|channel|> commentary<|message|> "),
            ),
            mark="chat_format=llm-jp-harmony",
        ),
        ReasoningFormat(
            name="functionary_v3_2", answer=("all\n", ""), frames=(">>>all\n",), mark=">>>all"
        ),
        ReasoningFormat(
            name="exaone_deep", open=("<thought>",), close=("</thought>",), mark="</thought>"
        ),
        ReasoningFormat(
            name="hyperclovax",
            open=("/think\n",),
            close=("<|im_end|>\n<|im_start|>assistant",),
            answer=("\n", "<|im_end|>"),
            mark="-> tool/function_call",
        ),
        ReasoningFormat(
            name="k2_horizon",
            open=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
            close=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
            mark=r"ifm\|think",
        ),
        ReasoningFormat(
            name="plamo3",
            open=("<|plamo:begin_think:plamo|>",),
            close=("<|plamo:end_think:plamo|>",),
            mark="begin_think:plamo",
        ),
        ReasoningFormat(
            name="kimi_k3",
            open=("<|open|>think<|sep|>",),
            close=("<|close|>think<|sep|>",),
            answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            frames=("<|close|>message<|sep|>",),
            mark=r"<\|open\|>",
        ),
        ReasoningFormat(
            name="minimax_m3", open=("<mm:think>",), close=("</mm:think>",), mark="<mm:think>"
        ),
        ReasoningFormat(
            name="apertus",
            open=("<|inner_prefix|>",),
            close=("<|inner_suffix|>",),
            mark=r"<\|inner_prefix\|>",
        ),
        ReasoningFormat(
            name="solar_open2",
            open=("<|think:start|>",),
            close=("<|think:end|>",),
            mark=r"<\|think:start\|>",
        ),
        ReasoningFormat(
            name="solar_open",
            open=("<|think|>",),
            close=("<|end|>",),
            answer=("<|content|>", "<|end|>"),
            header="<|begin|>assistant",
            mark=r"<\|tool_call:args\|>",
        ),
        ReasoningFormat(
            name="hy_v3",
            open=("<think:opensource>",),
            close=("</think:opensource>",),
            mark=":opensource|<think:",
        ),
        ReasoningFormat(
            name="hy_v4", open=("<think:6124c78e>",), close=("</think:6124c78e>",), mark=":6124c78e"
        ),
        ReasoningFormat(
            name="longcat",
            open=("<longcat_think>",),
            close=("</longcat_think>",),
            mark="<longcat_think>",
        ),
        ReasoningFormat(
            name="hunyuan_a13b",
            open=("<think>",),
            close=("</think>",),
            answer=("<answer>", "</answer>"),
            leads=("助手：",),
            frames=("\n</answer>",),
            mark=r"<\|extra_0\|>",
        ),
        ReasoningFormat(
            name="ernie45",
            open=("<think>",),
            close=("</think>",),
            answer=("<response>", "</response>"),
            mark="<global_setting>|</response> for each user query",
        ),
        ReasoningFormat(
            name="granite",
            open=("Here is my thought process:", "Here's my thought process:"),
            close=("Here is my response:", "Here's my response:"),
            mark="Here is my thought process",
        ),
        ReasoningFormat(
            name="apriel",
            open=("Here are my reasoning steps:",),
            close=("[BEGIN FINAL RESPONSE]",),
            frames=("\n[END FINAL RESPONSE]", "[END FINAL RESPONSE]"),
            mark=r"\[BEGIN FINAL RESPONSE\]",
        ),
        ReasoningFormat(
            name="think",
            open=("<think>",),
            close=("</think>",),
            # MiniMax M1 and Cogito think so without a word of it in their templates.
            mark="</think>|provide tool-name and json-object|deep thinking subroutine",
        ),
    )
}
