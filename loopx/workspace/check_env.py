"""The environment in which checks run: the person's own, without what agent CLIs and LoopX sign in or speak with.

A deny list, not an allow list, so that a project's `DATABASE_URL` survives (loops, "The contract: the only judge").
"""

from __future__ import annotations

from collections.abc import Mapping

DENIED_PREFIXES = (
    "ANTHROPIC_",
    "AZURE_OPENAI_",
    "CLAUDE_",
    "CODEX_",
    "GEMINI_",
    "GOOGLE_GENAI_",
    "LOOPX_",
    "OPENAI_",
    "OPENCODE_",
    "OPENROUTER_",
)
DENIED_NAMES = frozenset(
    {
        "AI_GATEWAY_API_KEY",
        "AWS_BEARER_TOKEN_BEDROCK",
        "CEREBRAS_API_KEY",
        "CLAUDECODE",
        "COHERE_API_KEY",
        "DEEPSEEK_API_KEY",
        "FIREWORKS_API_KEY",
        "GITHUB_COPILOT_TOKEN",
        "GOOGLE_API_KEY",
        "GOOGLE_GENERATIVE_AI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "MOONSHOT_API_KEY",
        "TOGETHER_API_KEY",
        "XAI_API_KEY",
        "ZAI_API_KEY",
    }
)


def is_denied(name: str) -> bool:
    """Whether a variable is kept from checks."""
    return name in DENIED_NAMES or name.startswith(DENIED_PREFIXES)


def check_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a check sees. Python is told to write no bytecode, so that a check leaves the tree alone."""
    kept = {name: value for name, value in env.items() if not is_denied(name)}
    kept.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    return kept
