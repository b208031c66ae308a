"""The table of tool formats: one row for each way in which model families write tool calls.

A terminal is a text or special token that has a meaning in a format. If a terminal is a special
token of the model, the parser matches its token id. If the model writes the same characters with
ordinary tokens, they are plain text. The parser matches all other terminals as text.

Sources: the chat templates published with the models, and the parsers of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from .builders import (
    braced_calls,
    cdata_tags,
    channel_tags,
    deepseek_calls,
    element_tags,
    function_json_calls,
    function_tags,
    harmony_template_calls,
    inkling_calls,
    invoke_tags,
    json_call_syntax,
    json_calls,
    key_value_tags,
    marked_invoke_tags,
    mistral_calls,
    plamo_calls,
    python_calls,
    recipient_line_calls,
    recipient_tags,
    sectioned_key_value_tags,
    shell_tags,
    solar_calls,
    step_tags,
    typed_tags,
    with_function_tags,
    with_json,
    with_section,
    with_words,
    with_wrappers,
)
from .types import START, CallSyntax, State, ToolFormat

_VLLM = "vLLM's parser"
_SGLANG = "SGLang's parser"
_PLUGIN = "a parser for vLLM"

#: Llama 4 is published with a template for JSON calls. The template for Python calls is vLLM's.
_PYTHONIC_4 = r"(?s)\[func_name1\(.*<\|header_start\|>"
_DSML, _GCML = "｜DSML｜", "｜GCML｜"
_LABEL, _LABELLED = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_KIMI_ENDS = {
    _LABEL: "label",
    "<|tool_call_end|>": "calls",
    "<|tool_calls_section_end|>": START,
    "<|tool_call_section_end|>": START,
}
_LONGCAT = key_value_tags(
    "longcat_2",
    ("<longcat_tool_call>", "</longcat_tool_call>"),
    ("<longcat_arg_key>", "<longcat_arg_value>"),
    mark="<longcat_arg_key>",
    models="LongCat models after LongCat Flash",
    source="its makers' parser",
)
_CALL = r"<\|function_call\|>"
_GIGACHAT = json_calls(
    "gigachat3",
    (
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "function call<|role_sep|>\n",
        "<|function_call|>",
    ),
    json_call_syntax(before="<|message_sep|>\n\nfunction call<|role_sep|>\n"),
    mark="role_sep",
    models="GigaChat 3",
)
_LLAMA = with_words(
    with_function_tags(
        json_calls(
            "llama3_json",
            ("<|python_tag|>",),
            json_call_syntax("; ", "parameters"),
            closes=("<|python_end|>",),
            bare="{",
            # Command R's lists of actions look the same, but cannot express "no call".
            mark=r'(?s)\A(?!.*Action:).*?("parameters":|<\|python_tag\|>)',
            models="Llama 3.1, 3.2, 3.3, 4",
            aliases=("llama3", "llama4_json", "llama_3_x"),
        )
    )
)
#: It may also write its list of calls in a fenced code block after some text.
_XLAM = json_calls(
    "xlam",
    ("<tool_call>", "[TOOL_CALLS]"),
    json_call_syntax(", ", first="[", last="]", ids=True),
    closes=("</tool_call>",),
    inner=True,
    bare="[",
    mark="calls in a single JSON array|xLAM|deep thinking subroutine",
    models="xLAM, Cogito of Llama",
)
#: Llama 4 writes the text before a call between these tags. The text may be empty.
_PYTHON = {"<|python_start|>": START, "<|python_end|>": START}
#: In MiMo's format, values have no line ends inside their tags. This is the only difference from
#: Qwen3 Coder's format.
_MIMO = "<parameter=example_parameter_1>value_1|<tool_call><function="
#: Rows with more specific marks come first: detection takes the first match.
TOOLS: Mapping[str, ToolFormat] = {
    row.name: with_json(with_wrappers(row))
    for row in (
        marked_invoke_tags(
            "deepseek_v32",
            f"{_DSML}function_calls",
            _DSML,
            "(?s)｜DSML｜.*function_calls",
            models="DeepSeek V3.2",
            aliases=("deepseekv32",),
        ),
        marked_invoke_tags(
            "deepseek_v41",
            f"{_DSML} calls",
            f"{_DSML} ",
            f"{_DSML} ",
            models="DeepSeek V4.1",
            aliases=("deepseekv41",),
            source=_VLLM,
        ),
        marked_invoke_tags(
            "deepseek_v4",
            f"{_DSML}tool_calls",
            _DSML,
            _DSML,
            models="DeepSeek V4",
            aliases=("deepseekv4",),
        ),
        marked_invoke_tags("gigachat35", f"{_GCML}tool_calls", _GCML, _GCML, models="GigaChat 3.5"),
        deepseek_calls(
            "deepseek_v3",
            "(?s)<｜tool▁sep｜>.*```json",
            typed=True,
            models="DeepSeek V3, R1",
            aliases=("deepseekv3", "deepseek_r1"),
            source="vLLM's template",
        ),
        deepseek_calls(
            "deepseek_v31",
            "<｜tool▁sep｜>",
            typed=False,
            models="DeepSeek V3.1",
            aliases=("deepseekv31", "deepseek_v3_1"),
        ),
        ToolFormat(
            name="kimi_k2",
            # Some models write the tags of the section in the singular.
            opens={
                "<|tool_calls_section_begin|>": "calls",
                "<|tool_call_section_begin|>": "calls",
                _LABEL: "label",
            },
            states={
                "calls": State(reads="between", on=_KIMI_ENDS),
                "label": State(
                    reads="label", on=_KIMI_ENDS | {_LABELLED: "arguments"}, peek={"{": "arguments"}
                ),
                "arguments": State(reads="json", on=_KIMI_ENDS, then="calls"),
            },
            written=CallSyntax(
                first="<|tool_calls_section_begin|>",
                before=_LABEL + "functions.",
                between=":{n}" + _LABELLED,
                after="<|tool_call_end|>",
                separator="",
                last="<|tool_calls_section_end|>",
            ),
            ends_reasoning=True,
            mark=r"<\|tool_calls_section_begin\|>",
            models="Kimi K2",
        ),
        step_tags("step3", models="Step 3", source=_SGLANG),
        recipient_tags(
            "muse", "atem:", models="Muse Glimmer", aliases=("muse_glimmer", "musespark1x")
        ),
        channel_tags("beam", "rfl:", models="Beam", source=_SGLANG),
        typed_tags("kimi_k3", models="Kimi K3"),
        invoke_tags(
            "minimax_m2", "minimax:tool_call", "", "minimax:tool_call", models="MiniMax M2"
        ),
        invoke_tags(
            "dots", "dots_function_call", "", "dots_function_call", models="dots", source=_VLLM
        ),
        key_value_tags(
            "solar_open2",
            ("<|tool_call:start|>", "<|tool_call:end|>"),
            ("<|tool_arg:start|>", "<|tool_arg:value|>"),
            mark=r"<\|tool_arg:start\|>",
            key_end="",
            value_end="<|tool_arg:end|>",
            models="Solar Open 2",
            source=_VLLM,
        ),
        solar_calls("solar_open", models="Solar Open"),
        plamo_calls("plamo3", models="PLaMo 3", source=_VLLM),
        sectioned_key_value_tags(
            "k2_horizon",
            ("ifm|", ""),
            mark=r"<ifm\|tool_call>",
            after_name="",
            typed=True,
            models="K2 Horizon",
        ),
        shell_tags("cwm", models="Code World Model", source="its makers' guide"),
        cdata_tags("minicpm5", models="MiniCPM 5", aliases=("minicpm5xml",)),
        element_tags("minimax_m3", "]<]minimax[>[", models="MiniMax M3"),
        _LONGCAT,
        replace(
            _LONGCAT,
            name="longcat",
            written=json_call_syntax(
                "", before="<longcat_tool_call>\n", after="\n</longcat_tool_call>"
            ),
            mark="<longcat_tool_call>",
            models="LongCat Flash",
            source="its makers' README",
        ),
        sectioned_key_value_tags(
            "hy_v3",
            ("", ":opensource"),
            mark=":opensource|<tool_sep:",
            models="Hunyuan 3, as published",
            aliases=("hunyuan",),
        ),
        sectioned_key_value_tags(
            "hy_v4",
            ("", ":6124c78e"),
            mark=":6124c78e|<tool_calls:",
            after_name="",
            line="",
            models="Hunyuan 4",
            source=_VLLM,
        ),
        sectioned_key_value_tags(
            "hy_v3_plain",
            ("", ""),
            mark="<tool_sep>",
            models="Hunyuan 3, if its tags have no suffix like `:opensource`",
            source=_VLLM,
        ),
        key_value_tags(
            "iquest_q1",
            ("<iquest_tool_call>", "</iquest_tool_call>"),
            ("<arg_key>", "<arg_value>"),
            mark="<iquest_tool_call>",
            models="iQuest Q1",
            source=_SGLANG,
        ),
        key_value_tags(
            "glm45",
            ("<tool_call>", "</tool_call>"),
            ("<arg_key>", "<arg_value>"),
            mark="<arg_key>",
            models="GLM 4.5, 4.6, 4.7, Ling 3, Spark 2.5 and 3, Laguna",
            aliases=(
                "glm",
                "glm4",
                "glm47",
                "glm_4_5",
                "ling3",
                "spark25",
                "spark3",
                "poolside_v1",
            ),
        ),
        key_value_tags(
            "xing4",
            ("<tool_call>", "</tool_call>"),
            ("<param_key>", "<param_value>"),
            mark="<param_key>",
            line="",
            models="Xing 4, TeleChat 4",
            aliases=("xing4_0", "telechat4"),
            source="its makers' prompt",
        ),
        function_json_calls(
            "functionary",
            r"\{start_tag\}=\{function_name\}",
            models="Functionary 3.1, Llama 3.1 (custom functions)",
            aliases=("functionary_v3_1", "functionary_v3_1_llama_3_1"),
        ),
        recipient_line_calls("functionary_v3_2", ">>>all", models="Functionary 3.2"),
        harmony_template_calls(
            "llm_jp", "chat_format=llm-jp-harmony", models="LLM-jp 4", aliases=("llm_jp_harmony",)
        ),
        function_tags(
            "seed_oss", "seed:tool_call", "seed:tool_call", lines=False, models="Seed OSS"
        ),
        function_tags(
            "mimo", "tool_call", _MIMO, lines=False, models="MiMo V2, V2.6", source=_VLLM
        ),
        function_tags(
            "qwen3_coder",
            "tool_call",
            "<function=",
            models="Qwen3 Coder, Qwen3.5, Step 3.5, Nemotron 3, Granite 4.2, iQuest Coder,"
            " MiniCPM-V, Nanbeige",
            aliases=("qwen3_xml", "step3p5", "step5", "nemotron_v3", "iquest_coder", "nanbeige"),
            source="the template of Step 3.7",
        ),
        json_calls(
            "phi4_mini",
            ("functools[", "<|tool_call|>"),
            json_call_syntax(", ", first="functools[", last="]"),
            closes=("<|/tool_call|>",),
            mark=r"functools|<\|/tool\|>",
            models="Phi-4 mini, FireFunction 2",
            aliases=("phi4_mini_json", "firefunction_v2"),
        ),
        json_calls(
            "granite",
            ("<|tool_call|>", "<tool_call>"),
            json_call_syntax(first="<|tool_call|>[", separator=", ", last="]"),
            closes=("</tool_call>",),
            mark=r"<\|tool_call\|>",
            models="Granite 3",
        ),
        mistral_calls(
            "mistral_v11",
            CallSyntax(
                before="[TOOL_CALLS]", between="[CALL_ID]{id}[ARGS]", after="", separator=""
            ),
            r"\[CALL_ID\]",
            models="Mistral, tokenizer v11",
        ),
        mistral_calls(
            "mistral_v13",
            CallSyntax(before="[TOOL_CALLS]", between="[ARGS]", after="", separator=""),
            r"\[ARGS\]",
            models="Mistral, tokenizer v13 and later",
            aliases=("magistral",),
        ),
        mistral_calls(
            "mistral",
            json_call_syntax(", ", first="[TOOL_CALLS][", last="]", ids=True),
            r"\[TOOL_CALLS\]",
            models="Mistral, before tokenizer v11",
            aliases=("mistral_nemo",),
        ),
        braced_calls(
            "functiongemma",
            "<start_function_call>",
            "<end_function_call>",
            "<escape>",
            models="FunctionGemma",
            source="its makers' template",
        ),
        braced_calls(
            "gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', in_order=True, models="Gemma 4"
        ),
        json_calls(
            "cohere",
            ("<|START_ACTION|>",),
            json_call_syntax(
                ",\n    ",
                "parameters",
                name='"tool_call_id": "{n}", "tool_name"',
                first="<|START_ACTION|>[\n    ",
                last="\n]<|END_ACTION|>",
            ),
            closes=("<|END_ACTION|>",),
            mark=r"<\|START_ACTION\|>",
            models="Command R7B, Command A",
            aliases=("cohere_command3", "cohere_command4", "command_r7b"),
        ),
        json_calls(
            "apertus",
            ("<|tools_prefix|>",),
            CallSyntax(
                first="<|tools_prefix|>[",
                before='{"',
                between='": ',
                after="}",
                separator=", ",
                last="]<|tools_suffix|>",
            ),
            closes=("<|tools_suffix|>",),
            mark=r"<\|tools_prefix\|>",
            models="Apertus",
            aliases=("apertus2509",),
        ),
        inkling_calls("inkling", models="Inkling", source=f"{_VLLM} and {_SGLANG}"),
        replace(
            _GIGACHAT,
            name="gigachat31",
            written=json_call_syntax(before="<|function_call|>"),
            mark=_CALL,
            models="GigaChat 3.1",
        ),
        _GIGACHAT,
        json_calls(
            "internlm",
            ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            json_call_syntax(before="<|action_start|><|plugin|>\n", after="<|action_end|>"),
            closes=("<|action_end|>",),
            mark=r"<\|action_start\|>",
            models="InternLM 2, 3, Intern-S1",
            aliases=("interns1",),
        ),
        json_calls(
            "minimax_m1",
            ("<tool_calls>",),
            json_call_syntax(first="<tool_calls>\n", last="\n</tool_calls>"),
            closes=("</tool_calls>",),
            mark="provide tool-name and json-object",
            models="MiniMax M1",
            aliases=("minimax",),
        ),
        json_calls(
            "hunyuan_a13b",
            ("<tool_calls>",),
            json_call_syntax(", ", first="<tool_calls>[", last="]</tool_calls>", ids=True),
            closes=("</tool_calls>",),
            mark="<tool_calls>",
            models="Hunyuan A13B, Jamba, Apriel",
            aliases=("jamba", "apriel_1_5"),
        ),
        python_calls(
            "llama4_pythonic",
            "<|python_start|>",
            "<|python_end|>",
            _PYTHONIC_4,
            models="Llama 4, if the prompt asks for calls in Python",
            source=_VLLM,
        ),
        python_calls(
            "lfm2",
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            r"<\|tool_call_start\|>",
            models="LFM2, LFM2.5",
            aliases=("lfm2_with_json_tools",),
        ),
        python_calls(
            "olmo3",
            "<function_calls>",
            "</function_calls>",
            "<function_calls>",
            in_list=False,
            models="OLMo 3",
        ),
        json_calls(
            "openpangu",
            ("<|tool_call_start|>", "[unused11]"),
            json_call_syntax(", ", first="<|tool_call_start|>\n[", last="]\n<|tool_call_end|>"),
            closes=("<|tool_call_end|>", "[unused12]"),
            mark=r"\[unused11\]",
            models="openPangu",
            aliases=("pangu", "openpangu_v2"),
            source=_PLUGIN,
        ),
        json_calls(
            "hyperclovax",
            (" -> tool/function_call\n",),
            json_call_syntax(", ", first=" -> tool/function_call\n[", last="]<|im_end|>"),
            closes=("<|im_end|>\n<|im_start|>assistant", "<|im_end|>"),
            mark="-> tool/function_call",
            models="HyperCLOVA X SEED Think",
            aliases=("hyperclovax_seed_think_14b",),
            source="a template for vLLM",
        ),
        json_calls(
            "rwkv",
            ("**Tool Call:**", "<tool_call>"),
            json_call_syntax(before="**Tool Call:**\n```json\n", after="\n```"),
            mark=r"\*\*Tool Call:\*\*",
            models="RWKV 7",
            source=_PLUGIN,
        ),
        with_words(
            with_function_tags(
                json_calls(
                    "hermes",
                    ("<tool_call>",),
                    json_call_syntax(before="<tool_call>{line}", after="{line}</tool_call>"),
                    closes=("</tool_call>",),
                    mark="<tool_call>",
                    models="Hermes, Qwen 2.5, Qwen 3, Granite 4, ERNIE 4.5, EXAONE 4,"
                    " and models whose template has no tools",
                    aliases=(
                        "qwen",
                        "qwen25",
                        "qwen3",
                        "qwen3_json",
                        "granite4",
                        "ernie45",
                        "trinity",
                        "hermes_2_pro",
                        "generic",
                        "xiaomi_mimo",
                        "exaone4",
                        "exaone_moe",
                    ),
                    source="the template of Qwen 3",
                )
            )
        ),
        json_calls(
            "nemotron_json",
            ("<TOOLCALL>",),
            json_call_syntax(", ", first="<TOOLCALL>[", last="]</TOOLCALL>"),
            closes=("</TOOLCALL>",),
            mark="<TOOLCALL>",
            models="Nemotron Nano v2",
            aliases=("nemotron_v2",),
        ),
        json_calls(
            "nemotron_mini",
            ("<toolcall>",),
            json_call_syntax(" ", before="<toolcall> ", after=" </toolcall>"),
            closes=("</toolcall>",),
            mark="<toolcall>|<extra_id_1>Tool",
            models="Nemotron Mini",
            source="its model in Ollama's library",
        ),
        json_calls(
            "granite_20b_fc",
            ("<function_call>",),
            json_call_syntax(before="<function_call> "),
            mark="<function_call>",
            models="Granite 20B functioncalling",
        ),
        replace(
            _XLAM,
            opens={**_XLAM.opens, "```json\n": "fence record"},
            inner=_XLAM.inner | {"```json\n"},
        ),
        replace(_LLAMA, opens={**_LLAMA.opens, **_PYTHON}, inner=_LLAMA.inner | {"<tool_call>"}),
        with_section(
            python_calls(
                "pythonic",
                "",
                "",
                r"\[func_name1\(",
                models="ToolACE, Llama 3.2, Gemma 3",
                source="vLLM's template",
            ),
            "<|python_start|>",
            "<|python_end|>",
        ),
        python_calls(
            "granite_pythonic",
            "",
            "",
            "",
            in_list=False,
            models="Granite 3.3 and 4, if the prompt asks for calls in Python",
            source=_PLUGIN,
        ),
    )
}
