"""What a host's *final error line* says, as data: phrases, HTTP statuses and error words to a kind of end.

The last resort of `ends.classify`: it is asked only about an error that the host itself reported as its own, never
about what an agent wrote or a tool printed. Unknown wording is None, and then nothing is assumed.
"""

from __future__ import annotations

import re

import msgspec

from loopx.hosts.protocol import HostEndKind as Kind


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What an error means. `bad_setup`: only a change of settings mends it."""

    kind: Kind
    code: str
    bad_setup: bool = False


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    pattern: str
    """Compiled when the first error is read; most turns end without one."""
    meaning: Meaning


def _row(kind: Kind, code: str, *phrases: str, bad_setup: bool = False) -> _Row:
    return _Row(pattern="|".join(phrases), meaning=Meaning(kind=kind, code=code, bad_setup=bad_setup))


_ROWS: tuple[_Row, ...] = (
    _row(
        Kind.SESSION_MISSING,
        "session_missing",
        r"no conversation found",
        r"no rollout found",
        r"thread[/ ]resume failed",
        r"session not found",
        r"no (?:saved|previous) sessions?",
        r"invalid session (?:identifier|id)",
        r"error resuming session",
        r"could not resume",
    ),
    _row(Kind.SESSION_MISSING, "session_in_use", r"session id \S+ is already in use"),
    # LoopX's own tool server, which Codex is told to need.
    _row(Kind.UNKNOWN, "tools_unavailable", r"mcp servers? failed to (?:initialize|start)"),
    _row(
        Kind.PERMISSION_DENIED,
        "sandbox_unavailable",
        r"landlockrestrict",
        r"seccompinstall",
        r"sandbox restrictions",
        r"bwrap: ",
        r"sandbox(?:ing)? (?:is )?(?:not available|unavailable|not supported)",
        bad_setup=True,
    ),
    _row(
        Kind.PERMISSION_DENIED,
        "bypass_refused_as_root",
        r"cannot be used with root/sudo",
        bad_setup=True,
    ),
    _row(
        Kind.PERMISSION_DENIED,
        "workspace_untrusted",
        r"not (?:inside )?a trusted (?:directory|folder|workspace)",
        r"untrusted (?:workspace|folder)",
        r"(?:folder|workspace) is not trusted",
        bad_setup=True,
    ),
    _row(
        Kind.WORKER_ERROR,
        "bad_arguments",
        r"unexpected argument",
        r"unknown (?:option|arguments?)",
        r"unrecognized (?:option|argument)",
        r"invalid value .* for '--",
        bad_setup=True,
    ),
    _row(
        Kind.WORKER_ERROR,
        "bad_config",
        r"error (?:loading|parsing) config",
        r"invalid configuration",
        r"config(?:uration)? (?:file )?(?:error|(?:is )?(?:invalid|not valid))",
        bad_setup=True,
    ),
    # Money and quota: a wait alone does not mend these, unless a reset is named.
    _row(
        Kind.QUOTA_EXHAUSTED,
        "quota_exceeded",
        r"insufficient[_ ]quota",
        r"quota exceeded",
        r"exceeded your current quota",
        r"quota[_ ]exhausted",
        r"exhausted your .*quota",
    ),
    _row(
        Kind.QUOTA_EXHAUSTED,
        "out_of_credits",
        r"credit balance is too low",
        r"out of (?:extra usage|credits)",
        r"spending (?:cap|limit) reached",
        r"billing[_ ]error",
        r"payment required",
        r"credits?_required",
        r"insufficient (?:credits|balance|funds)",
    ),
    # Limits that reset by themselves.
    _row(
        Kind.RATE_LIMITED,
        "usage_limit",
        r"(?:hit|reached|exceeded) (?:your|the|its) (?:\S+ ){0,3}limit",
        r"usage[_ ]limit",
        r"(?:session|weekly|daily|monthly|\d+-hour) limit",
        r"limit (?:will )?resets?",
    ),
    _row(
        Kind.RATE_LIMITED,
        "rate_limit",
        r"rate[_ -]?limit",
        r"too many requests",
        r"requests per (?:minute|day)",
        r"resource[_ ](?:has been )?exhausted",
    ),
    _row(
        Kind.AUTH_FAILED,
        "not_signed_in",
        r"not (?:logged|signed) in",
        r"please (?:run|log|sign)[^.]{0,30}(?:log|sign)[ -]?in",
        r"login required",
        r"/login\b",
    ),
    _row(
        Kind.AUTH_FAILED,
        "bad_api_key",
        r"invalid (?:x-)?api[_ -]?key",
        r"incorrect api key",
        r"api[_ ]key (?:not valid|not found|is missing|required|must be)",
        r"missing (?:environment variable|api key)",
        r"must specify the \w+_API_KEY",
    ),
    _row(
        Kind.AUTH_FAILED,
        "sign_in_lapsed",
        r"refresh token",
        r"token (?:has )?(?:expired|been revoked)",
        r"(?:oauth|access) token",
        r"authentication[_ ](?:failed|error)",
        r"failed to authenticate",
        r"unauthori[sz]ed",
        r"unauthenticated",
        r"invalid auth(?:entication)? method",
        r"set an auth method",
        r"invalid credentials",
        r"oauth_org_not_allowed",
    ),
    _row(
        Kind.WORKER_ERROR,
        "model_unavailable",
        r"model[_ ](?:\S+ )?(?:not[_ ]found|does not exist|is not (?:supported|available|found))",
        r"model .{1,80}does not exist",
        r"models?/\S+ is not found",
        r"no such model",
        r"unknown model",
        r"providermodelnotfound",
        r"issue with the selected model",
        bad_setup=True,
    ),
    _row(
        Kind.PROVIDER_CAPACITY,
        "at_capacity",
        r"at capacity",
        r"no capacity",
        r"capacity (?:available|constraints|exhausted)",
        r"model is (?:currently )?(?:experiencing high|unavailable)",
    ),
    _row(
        Kind.PROVIDER_OVERLOADED,
        "overloaded",
        r"overloaded",
        r"service unavailable",
        r"currently unavailable",
        r"server is busy",
        r"high demand",
        r"(?:internal )?server[_ ]error",
    ),
    _row(
        Kind.OUTPUT_BUDGET_EXHAUSTED,
        "context_exhausted",
        r"context (?:window|length)",
        r"context_length_exceeded",
        r"prompt (?:is )?too long",
        r"ran out of room",
        r"input is too long",
        r"maximum context",
        r"token count .*exceeds",
    ),
    _row(
        Kind.OUTPUT_BUDGET_EXHAUSTED,
        "output_budget",
        r"max(?:imum)? (?:session )?turns",
        r"max[_ ]output[_ ]tokens",
        r"output token maximum",
        r"budget exceeded",
        r"max(?:imum)? budget",
    ),
    _row(
        Kind.CONTRACT_REJECTED,
        "request_rejected",
        r"invalid[_ ](?:request|argument|prompt)",
        r"bad request",
        r"output schema",
        r"structured output",
    ),
    _row(
        Kind.TRANSPORT_LOST,
        "connection_lost",
        r"stream (?:disconnected|closed|error)",
        r"connection (?:reset|refused|closed|error|lost|was closed|dropped)",
        r"\becon\w+",
        r"etimedout|enotfound|eai_again",
        r"socket (?:hang|connection)",
        r"network error",
        r"fetch failed",
        r"\bdns\b",
        r"timed? ?out",
        r"(?:unable to|cannot|could not) connect",
        r"error sending request",
        r"premature close",
        r"\bterminated\b",
        r"\baborted\b",
        r"incomplete",
    ),
)
"""First match wins: what narrows a limit or a status down stands above what is general."""

_STATUSES: dict[int, Meaning] = {
    400: Meaning(kind=Kind.CONTRACT_REJECTED, code="http_400"),
    401: Meaning(kind=Kind.AUTH_FAILED, code="http_401"),
    402: Meaning(kind=Kind.QUOTA_EXHAUSTED, code="http_402"),
    403: Meaning(kind=Kind.AUTH_FAILED, code="http_403"),
    404: Meaning(kind=Kind.WORKER_ERROR, code="model_unavailable", bad_setup=True),
    408: Meaning(kind=Kind.TRANSPORT_LOST, code="http_408"),
    413: Meaning(kind=Kind.OUTPUT_BUDGET_EXHAUSTED, code="context_exhausted"),
    422: Meaning(kind=Kind.CONTRACT_REJECTED, code="http_422"),
    429: Meaning(kind=Kind.RATE_LIMITED, code="http_429"),
    500: Meaning(kind=Kind.PROVIDER_OVERLOADED, code="http_500"),
    502: Meaning(kind=Kind.TRANSPORT_LOST, code="http_502"),
    503: Meaning(kind=Kind.PROVIDER_OVERLOADED, code="http_503"),
    504: Meaning(kind=Kind.TRANSPORT_LOST, code="http_504"),
    529: Meaning(kind=Kind.PROVIDER_OVERLOADED, code="http_529"),
}

_REFINES = (Kind.QUOTA_EXHAUSTED, Kind.PROVIDER_CAPACITY, Kind.OUTPUT_BUDGET_EXHAUSTED, Kind.SESSION_MISSING)
"""Kinds that wording may make of a status: a 429 can be an empty purse, a 400 a full context."""

_STATUS_WORDS = re.compile(
    r"""(?:\b(?:status(?: code)?|http(?:/\d(?:\.\d)?)?|api error|error code)|"code\\?")\W{0,3}([45]\d\d)\b""", re.I
)


def status_in(text: str) -> int | None:
    """The HTTP status that an error line spells out (`unexpected status 529`, `API Error: 401`), or None."""
    found = _STATUS_WORDS.search(text)
    return int(found[1]) if found else None


def of_status(status: int | None) -> Meaning | None:
    """What an HTTP status means on its own."""
    if status is None:
        return None
    known = _STATUSES.get(status)
    if known is not None:
        return known
    return Meaning(kind=Kind.PROVIDER_OVERLOADED, code=f"http_{status}") if 500 <= status <= 599 else None


def of_text(text: str) -> Meaning | None:
    """What the phrase table makes of a final error line; None when it has no row for it."""
    flat = text.replace("’", "'")[:4000]
    return next((one.meaning for one in _ROWS if re.search(one.pattern, flat, re.I)), None)


def of_error(text: str, status: int | None = None) -> Meaning | None:
    """A status first, refined by the wording where that is known to matter; the wording alone last."""
    known = of_status(status if status is not None else status_in(text))
    said = of_text(text)
    if known is None:
        return said
    if said is not None and (said.kind in _REFINES or known.kind is Kind.CONTRACT_REJECTED):
        return said
    return known
