"""What is to be said of each row: which models write so, by what other names it is known, and
where that was read. Only people and documentation read it, except for the other names.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["FOUND", "HARMONY", "REASONING_ABOUT", "TOOLS_ABOUT", "About"]


class About(Struct, frozen=True):
    """``models``: for which it is. ``source``: where it was read. ``template``: whether that was
    the chat template a model is published with, or a server's for it, and not only a parser.
    ``also``: what vLLM, SGLang, TensorRT-LLM or llama.cpp call it, where it is spelled otherwise in
    more than case and signs."""

    models: str
    source: str
    template: bool = False
    also: tuple[str, ...] = ()


_VLLM = "vLLM's parser"
_SGLANG = "SGLang's parser"
_PLUGIN = "a parser for vLLM"
#: What stands in the table of no format: gpt-oss is spoken to in a dialect of its own.
HARMONY = frozenset({"harmony", "openai", "openai_gptoss", "gpt_oss"})
#: What asks for the format that the model's template tells.
FOUND = frozenset({"auto", "hf", "response_template"})

TOOLS_ABOUT: Mapping[str, About] = {
    "deepseek_v32": About("DeepSeek V3.2", "its template", True, ("deepseekv32",)),
    "deepseek_v41": About("DeepSeek V4.1", _VLLM, False, ("deepseekv41",)),
    "deepseek_v4": About("DeepSeek V4", "its template", True, ("deepseekv4",)),
    "deepseek_v3": About("DeepSeek V3, R1", "vLLM's template", True, ("deepseekv3", "deepseek_r1")),
    "deepseek_v31": About("DeepSeek V3.1", "its template", True, ("deepseekv31", "deepseek_v3_1")),
    "kimi_k2": About("Kimi K2", "its template", True),
    "kimi_k3": About("Kimi K3", "its template", True),
    "step3": About("Step 3", _SGLANG),
    "muse": About("Muse Glimmer", "its template", True, ("muse_glimmer",)),
    "beam": About("Beam", _SGLANG),
    "minimax_m2": About("MiniMax M2", "its template", True),
    "minimax_m3": About("MiniMax M3", "its template", True),
    "dots": About("dots", _VLLM),
    "solar_open2": About("Solar Open 2", _VLLM),
    "solar_open": About("Solar Open", "its template", True),
    "k2_horizon": About("K2 Horizon", "its template", True),
    "cwm": About("Code World Model", "its makers' guide"),
    "minicpm5": About("MiniCPM 5", "its template", True, ("minicpm5xml",)),
    "longcat_2": About("LongCat, the later ones", "its makers' parser"),
    "longcat": About("LongCat Flash", "its makers' README"),
    "hy_v3": About("Hunyuan 3, as published", "its template", True, ("hunyuan",)),
    "hy_v4": About("Hunyuan 4", _VLLM),
    "hy_v3_plain": About("Hunyuan 3 without a suffix", _VLLM),
    "glm45": About(
        "GLM 4.5, 4.6, 4.7, Ling 3, Spark 2.5 and 3, Laguna",
        "its template",
        True,
        ("glm", "glm4", "glm47", "glm_4_5", "ling3", "spark25", "spark3", "poolside_v1"),
    ),
    "plamo3": About("PLaMo 3", _VLLM),
    "iquest_q1": About("iQuest Q1", _SGLANG),
    "xing4": About("Xing 4, TeleChat 4", "its makers' prompt", False, ("xing4_0", "telechat4")),
    "functionary": About(
        "Functionary 3.1, functions of Llama 3.1",
        "its template",
        True,
        ("functionary_v3_1", "functionary_v3_1_llama_3_1"),
    ),
    "functionary_v3_2": About("Functionary 3.2", "its template", True),
    "llm_jp": About("LLM-jp 4", "its template", True, ("llm_jp_harmony",)),
    "seed_oss": About("Seed OSS", "its template", True),
    "mimo": About("MiMo V2, V2.6", _VLLM),
    "qwen3_coder": About(
        "Qwen3 Coder, Qwen3.5, Step 3.5, Nemotron 3, Granite 4.2, iQuest Coder, MiniCPM-V,"
        " Nanbeige",
        "the template of Step 3.7",
        True,
        ("qwen3_xml", "step3p5", "nemotron_v3", "iquest_coder", "nanbeige"),
    ),
    "phi4_mini": About(
        "Phi-4 mini, FireFunction 2", "its template", True, ("phi4_mini_json", "firefunction_v2")
    ),
    "granite": About("Granite 3", "its template", True),
    "mistral_v13": About("Mistral, tokenizer v13 and later", "its template", True, ("magistral",)),
    "mistral_v11": About("Mistral, tokenizer v11", "its template", True),
    "mistral": About("Mistral, before tokenizer v11", "its template", True, ("mistral_nemo",)),
    "functiongemma": About("FunctionGemma", "its makers' template", True),
    "gemma4": About("Gemma 4", "its template", True),
    "cohere": About(
        "Command R7B, Command A",
        "its template",
        True,
        ("cohere_command3", "cohere_command4", "command_r7b"),
    ),
    "apertus": About("Apertus", "its template", True, ("apertus2509",)),
    "inkling": About("Inkling", f"{_VLLM} and {_SGLANG}"),
    "gigachat35": About("GigaChat 3.5", "its template", True),
    "gigachat31": About("GigaChat 3.1", "its template", True),
    "gigachat3": About("GigaChat 3", "its template", True),
    "internlm": About("InternLM 2, 3, Intern-S1", "its template", True, ("interns1",)),
    "minimax_m1": About("MiniMax M1", "its template", True, ("minimax",)),
    "hunyuan_a13b": About(
        "Hunyuan A13B, Jamba, Apriel", "its template", True, ("jamba", "apriel_1_5")
    ),
    "llama4_pythonic": About("Llama 4, told to write Python", _VLLM),
    "lfm2": About("LFM2, LFM2.5", "its template", True, ("lfm2_with_json_tools",)),
    "olmo3": About("OLMo 3", "its template", True),
    "openpangu": About("openPangu", _PLUGIN, False, ("pangu", "openpangu_v2")),
    "hyperclovax": About(
        "HyperCLOVA X SEED Think",
        "a template for vLLM",
        True,
        ("hyperclovax_seed_think_14b",),
    ),
    "rwkv": About("RWKV 7", _PLUGIN),
    "hermes": About(
        "Hermes, Qwen 2.5, Qwen 3, Granite 4, ERNIE 4.5, EXAONE 4,"
        " and models without tools of their own",
        "the template of Qwen 3",
        True,
        (
            *("qwen", "qwen25", "qwen3", "qwen3_json", "granite4", "ernie45", "trinity"),
            *("hermes_2_pro", "generic", "xiaomi_mimo", "exaone4", "exaone_moe"),
        ),
    ),
    "nemotron_json": About("Nemotron Nano v2", "its template", True, ("nemotron_v2",)),
    "nemotron_mini": About("Nemotron Mini", "a template for Ollama"),
    "granite_20b_fc": About("Granite 20B functioncalling", "its template", True),
    "xlam": About("xLAM, Cogito of Llama", "its template", True),
    "llama3_json": About(
        "Llama 3.1, 3.2, 3.3, 4", "its template", True, ("llama3", "llama4_json", "llama_3_x")
    ),
    "pythonic": About("ToolACE, Llama 3.2, Gemma 3", "vLLM's template", True),
    "granite_pythonic": About("Granite 3.3 and 4, told to write Python", _PLUGIN),
}

REASONING_ABOUT: Mapping[str, About] = {
    "append_think": About(
        "any that thinks, whose thinking is to stay in the answer",
        _VLLM,
        False,
        ("minimax_m2_append_think", "minimax_append_think"),
    ),
    "seed": About("Seed OSS", "its template", True, ("seed_oss",)),
    "kimi": About("Kimi, the first one", _SGLANG),
    "mistral": About("Magistral, Ministral 3 Reasoning", "its template", True),
    "gemma4": About("Gemma 4", "its template", True),
    "cohere": About(
        "Command R7B, Command A",
        "its template",
        True,
        ("cohere_command3", "cohere_command4", "command_r7b"),
    ),
    "inkling": About("Inkling", f"{_VLLM} and {_SGLANG}"),
    "kimi_k3": About("Kimi K3", "its template", True),
    "muse": About("Muse Glimmer", "its template", True, ("muse_glimmer",)),
    "beam": About("Beam", _SGLANG),
    "llm_jp": About("LLM-jp 4", "its template", True, ("llm_jp_harmony",)),
    "functionary_v3_2": About("Functionary 3.2, which does not think", "its template", True),
    "exaone_deep": About("EXAONE Deep", "its template", True),
    "hyperclovax": About(
        "HyperCLOVA X SEED Think", "a template for vLLM", True, ("hyperclovax_seed_think_14b",)
    ),
    "k2_horizon": About("K2 Horizon", "its template", True),
    "plamo3": About("PLaMo 3", _VLLM),
    "minimax_m3": About("MiniMax M3", "its template", True),
    "apertus": About("Apertus", "its template", True, ("apertus2509",)),
    "solar_open2": About("Solar Open 2", _VLLM),
    "solar_open": About("Solar Open", "its template", True),
    "hy_v3": About("Hunyuan 3, as published", "its template", True, ("hunyuan",)),
    "hy_v4": About("Hunyuan 4", _VLLM),
    "longcat": About("LongCat Flash Thinking", "its makers' parser"),
    "hunyuan_a13b": About("Hunyuan A13B", "vLLM's parser and its template", True),
    "ernie45": About("ERNIE 4.5 Thinking, Granite 3.3", "its template", True),
    "granite": About("Granite 3.2", "its template", True),
    "apriel": About("Apriel 1.5, 1.6", "its template", True),
    "think": About(
        "DeepSeek R1 and V3.1 on, Qwen 3, GLM 4.5 on, MiniMax M2, MiMo, Nemotron,"
        " OLMo 3, Kimi K2, Step 3, Granite 4.2, Ling 3, Laguna",
        "the template of Qwen 3",
        True,
        (
            *("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "gigachat35", "holo2"),
            *(
                "qwen3",
                "qwen3_thinking",
                "qwen3_5",
                "interns1",
                "iquest_q1",
                "minicpmv",
                "nanbeige",
            ),
            *("glm45", "glm47", "ling3", "poolside", "poolside_v1", "laguna", "step3", "step3p5"),
            *("mimo", "olmo3", "kimi_k2", "kimi_k25", "minimax", "minimax_m2"),
            *("nemotron_v3", "nemotron_3", "nano_v3", "granite_thinking_parser", "dots", "rwkv"),
            *("openpangu", "openpangu_v2", "xing4", "xing4_0", "telechat4"),
        ),
    ),
}
