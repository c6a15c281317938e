"""Takes credentials out of a text that a host printed, before it is shown or stored. It never decides anything."""

from __future__ import annotations

import re

_SECRETS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{8,}"
    r"|\bAIza[A-Za-z0-9_\-]{20,}"
    r"|\b(?:ghp|gho|ghs|ghu|github_pat|glpat|xox[abprs])[_\-][A-Za-z0-9_\-]{10,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
    r"|(?<=[Bb]earer )[A-Za-z0-9._\-]{8,}"
    r"|(?<=://)[^/\s:@]{1,100}:[^/\s@]{1,200}(?=@)"
    r"|(?:(?<=[?&]key=)|(?<=api_key=)|(?<=api-key: )|(?<=token=)|(?<=password=))[^\s&\"']{4,}",
)


def redact(text: str) -> str:
    """`text` with everything that looks like a credential replaced by `[redacted]`."""
    return _SECRETS.sub("[redacted]", text)
