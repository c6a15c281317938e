"""The table of phrases and statuses: one row per wording that was seen, and nothing for ordinary sentences."""

from __future__ import annotations

import pytest

from loopx.hosts.phrases import of_error, of_status, status_in
from loopx.hosts.protocol import HostEndKind as Kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("You’ve hit your usage limit. Upgrade to Pro or try again at 8:16 PM.", Kind.RATE_LIMITED),
        ("You've hit your session limit · resets 3:45pm", Kind.RATE_LIMITED),
        ("You've reached your weekly limit", Kind.RATE_LIMITED),
        ("Claude AI usage limit reached|1796054400", Kind.RATE_LIMITED),
        ("5-hour limit reached ∙ resets 2am", Kind.RATE_LIMITED),
        ("exceeded retry limit, last status: 429 Too Many Requests", Kind.RATE_LIMITED),
        ("You're out of extra usage · resets 11:30am", Kind.QUOTA_EXHAUSTED),
        ("Spending cap reached resets 6pm", Kind.QUOTA_EXHAUSTED),
        ("Credit balance is too low", Kind.QUOTA_EXHAUSTED),
        ("Quota exceeded. Check your plan and billing details.", Kind.QUOTA_EXHAUSTED),
        ("unexpected status 429: insufficient_quota", Kind.QUOTA_EXHAUSTED),
        ("Invalid API key · Fix external API key", Kind.AUTH_FAILED),
        ("Not logged in · Please run /login", Kind.AUTH_FAILED),
        ("Your access token could not be refreshed because your refresh token was already used.", Kind.AUTH_FAILED),
        ("Please set an Auth method in your settings.json", Kind.AUTH_FAILED),
        ("Invalid auth method selected.", Kind.AUTH_FAILED),
        ("you must specify the GEMINI_API_KEY environment variable.", Kind.AUTH_FAILED),
        ("unexpected status 529 <unknown status code>: Overloaded", Kind.PROVIDER_OVERLOADED),
        ("unexpected status 503 Service Unavailable", Kind.PROVIDER_OVERLOADED),
        ("The model is overloaded. Please try again later.", Kind.PROVIDER_OVERLOADED),
        ("Selected model is at capacity. Please try a different model.", Kind.PROVIDER_CAPACITY),
        ("stream disconnected before completion: Transport error", Kind.TRANSPORT_LOST),
        ("API Error: Connection to the API was lost (ECONNRESET).", Kind.TRANSPORT_LOST),
        ("[API Error: terminated]", Kind.TRANSPORT_LOST),
        ("unexpected status 502 Bad Gateway", Kind.TRANSPORT_LOST),
        (
            "thread/start failed: required MCP servers failed to initialize: loopx: handshaking with MCP server "
            "failed: "
            "connection closed: initialize response",
            Kind.UNKNOWN,
        ),
        ("No conversation found with session ID: abc", Kind.SESSION_MISSING),
        ("thread/resume failed: no rollout found for thread id abc", Kind.SESSION_MISSING),
        ('Error resuming session: Invalid session identifier "abc".', Kind.SESSION_MISSING),
        ("Error: Session not found", Kind.SESSION_MISSING),
        ("Codex ran out of room in the model's context window.", Kind.OUTPUT_BUDGET_EXHAUSTED),
        ("unexpected status 400: prompt is too long: 210000 tokens", Kind.OUTPUT_BUDGET_EXHAUSTED),
        ("Prompt is too long", Kind.OUTPUT_BUDGET_EXHAUSTED),
        ("There's an issue with the selected model (x). It may not exist.", Kind.WORKER_ERROR),
        ("unexpected status 404 Not Found: The model `x` does not exist", Kind.WORKER_ERROR),
        ("error: unexpected argument '--nonsense' found", Kind.WORKER_ERROR),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges", Kind.PERMISSION_DENIED),
        ("error running sandbox: LandlockRestrict", Kind.PERMISSION_DENIED),
        ('[API Error: {"error":{"code":401,"message":"no"}}]', Kind.AUTH_FAILED),
        ('[API Error: {"error":{"code":400,"message":"API key not valid."}}]', Kind.AUTH_FAILED),
        ("API Error: 400 invalid_request_error", Kind.CONTRACT_REJECTED),
    ],
)
def test_known_wordings(text: str, kind: Kind) -> None:
    meaning = of_error(text)
    assert meaning is not None
    assert meaning.kind is kind


@pytest.mark.parametrize(
    "text", ["", "Something went wrong", "The tests fail at line 429", "Wrote 401 lines to api.py"]
)
def test_ordinary_sentences_mean_nothing(text: str) -> None:
    assert of_error(text) is None


def test_status_in() -> None:
    assert status_in("unexpected status 529 <unknown>") == 529
    assert status_in("HTTP 503") == 503
    assert status_in("line 429 of the file") is None
    assert status_in("status 200") is None


def test_every_5xx_is_the_providers() -> None:
    meaning = of_status(599)
    assert meaning is not None
    assert meaning.kind is Kind.PROVIDER_OVERLOADED
    assert of_status(418) is None
    assert of_status(None) is None
