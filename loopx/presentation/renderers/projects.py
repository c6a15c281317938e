"""A project's place on this machine as text."""

from __future__ import annotations

from collections.abc import Sequence

from loopx.runtime.project import Project

_MADE = {
    ".loopx": "the project's id; git does not see it",
    "loopx.toml": "defaults for new goals; all of it is a comment",
    "store": "the truth, outside the project",
}


def initialised_text(project: Project, made: Sequence[str]) -> str:
    """What `init` made, what it found, and the next step."""
    lines = [f"  project  {project.root}"]
    lines += [f"  made     {project.database if name == 'store' else name}   ({_MADE[name]})" for name in made]
    if not made:
        lines.append("  all set up already; nothing was changed")
    if project.foreign:
        lines.append("  found    another program's .loopx/ here; it is left alone   (loopx import reads its state)")
    lines.append('  next     loopx run "OBJECTIVE" --check "CMD" --engine E')
    return "\n".join(lines)
