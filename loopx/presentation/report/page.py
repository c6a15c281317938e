"""A goal's report: one HTML file that needs nothing beside it. No script, no address, the style sheet inside.

It is made from the page's own parts, without what only a live page can do.
"""

from __future__ import annotations

from markupsafe import Markup

from loopx.presentation.web import pages
from loopx.runtime.report_view import ReportView


def report_html(view: ReportView) -> str:
    """The whole file."""
    return pages.render(
        "report.html",
        {
            "live": False,
            "form": "",
            "back": "",
            "report": view,
            "view": view.goal,
            "now_ms": view.goal.now_ms,
            # Ours, and without `<`: nothing in it can end the element.
            "style": Markup(pages.static("app.css")),
        },
    )
