"""Backups, exports, retention and leaving, in a few words each; sizes as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from loopx.presentation.renderers import words
from loopx.presentation.renderers.quota_markdown import row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.hosts.protocol import ProbeResult
    from loopx.runtime.backups import BackupMade, Restored
    from loopx.runtime.exchange import Exported, Imported
    from loopx.runtime.leaving import Kept, Left
    from loopx.runtime.retention import Collected
    from loopx.runtime.rival_import import Taken

KINDS = {
    "output": "output of old turns",
    "agent_files": "results handed over by agents",
    "check_cache": "cached check results",
    "notifications": "notifications that were sent",
    "heartbeats": "old heartbeats",
    "worktree": "work trees whose work is on their branch",
}
NOTES = {
    "workbench_missing": "its workbench is not there",
    "workbench_unnamed": "it names no workbench",
    "ended_todos_left_out": "todos that it calls done were left out: nothing here has seen them",
    "monitor_left_out": "a monitor was left out: its probe is unknown",
    "dependency_left_out": "a dependency was left out",
    "quota_not_usable": "its quota is not usable here",
}


def size(number: int) -> str:
    """`950 B`, `12 kB`, `3.4 MB`, `2.1 GB`."""
    value, unit = float(number), "B"
    for bigger in ("kB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def backup_text(made: BackupMade) -> str:
    """`backup`."""
    held = f"{words.count(made.goals, 'goal')}, {words.count(made.events, 'event')}"
    head = f"  {made.path}   {size(made.bytes)} · {held} · read back and whole"
    return f"{head}\n{row('back', f'loopx restore {made.path}')}"


def restored_text(done: Restored) -> str:
    """`restore`."""
    held = f"{words.count(done.goals, 'goal')}, {words.count(done.events, 'event')}"
    lines = [f"  restored from {done.from_file}   {held}"]
    lines += [row("kept" if number == 0 else "", path) for number, path in enumerate(done.kept)]
    return "\n".join(lines)


def exported_text(done: Exported) -> str:
    """`export`."""
    held = f"{words.count(done.goals, 'goal')}, {words.count(done.events, 'event')}, {words.count(done.rows, 'row')}"
    return f"  {done.path}   {held}\n{row('sha256', done.sha256)}"


def imported_text(done: Imported) -> str:
    """`import` of an export."""
    held = f"{words.count(done.goals, 'goal')}, {words.count(done.events, 'event')}, {words.count(done.rows, 'row')}"
    return f"  imported {held}; every event chain holds\n{row('next', 'loopx status')}"


def taken_text(done: Taken) -> str:
    """`import` of the other program's state."""
    lines = [f"  taken from {done.registry}; its files are as they were"]
    for goal in done.goals:
        counts = words.joined([words.count(goal.todos, "todo"), words.count(goal.questions, "question")])
        lines.append(f"    {goal.goal_id}   {counts}   paused")
        lines += [row("", _note(note)) for note in goal.notes]
        lines.append(row("then", f'loopx goal edit {goal.goal_id} --check "CMD" --engine ENGINE'))
        lines.append(row("", f"loopx goal resume {goal.goal_id}"))
    if done.skipped:
        lines.append(row("left out", f"{', '.join(done.skipped)}: ended there"))
    return "\n".join(lines)


def _note(note: str) -> str:
    code, _, detail = note.partition(":")
    return f"{words.word(NOTES, code)}{f' ({detail})' if detail else ''}"


def collected_text(done: Collected) -> str:
    """`gc`."""
    if not done.items and not done.kept:
        return f"  nothing is older than {words.count(done.days, 'day')}"
    lines = []
    for kind, text in KINDS.items():
        items = [one for one in done.items if one.kind == kind]
        if items:
            number = sum(one.rows or 1 for one in items)
            room = sum(one.bytes for one in items)
            lines.append(row(f"{number}", f"{text}{f'  {size(room)}' if room else ''}"))
    lines += [row("kept", one) for one in done.kept]
    head = "removed" if done.removed else "would remove"
    total = f"  {head} what is older than {words.count(done.days, 'day')}: {size(done.bytes)}"
    return "\n".join([total, *lines, *([] if done.removed else [row("then", "loopx gc")])])


def kept_text(found: Kept) -> str:
    """`uninstall --dry-run`."""
    lines = [f"  {found.state_dir}   {size(found.state_bytes)}: the store, spools and work trees"]
    lines += [f"  {one}" for one in (found.project_folder,) if one is not None]
    for label, items in (("timers", found.timers), ("references", found.refs), ("work trees", found.worktrees)):
        lines += _listed(label, items)
    if found.branches:
        lines += _listed("branches", found.branches)
        lines.append(row("", "they stay, unless you add --branches"))
    if found.database is not None:
        lines.append(row("stays", f"{found.database} (it lies elsewhere)"))
    lines.append(row("then", "loopx uninstall --yes, and remove the package: pip uninstall loopx-control"))
    return "\n".join(lines)


def _listed(label: str, items: Sequence[str]) -> list[str]:
    return [row(label if number == 0 else "", one) for number, one in enumerate(items)]


def left_text(done: Left) -> str:
    """`uninstall`."""
    return "\n".join([*(f"  removed {one}" for one in done.removed), *(f"  stays   {one}" for one in done.stays)])


def hosts_text(found: Sequence[ProbeResult]) -> str:
    """`hosts`: each engine, whether it can run here, whether it is signed in, and what mends it."""
    lines = []
    for one in found:
        state = {"ready": "ready", "missing": "not installed", "broken": "does not run"}[one.executable]
        signed = words.word(words.SIGNED_IN, one.signed_in) if one.executable == "ready" else ""
        version = one.version if one.version not in (None, "unknown") else ""
        lines.append(f"  {one.engine:<10} {words.joined([state, version or '', signed])}")
        if one.program is not None:
            lines.append(row("", one.program))
        elif one.tried:
            lines.append(row("tried", ", ".join(one.tried[:3])))
        if one.fix:
            lines.append(row("to mend", one.fix))
    return "\n".join(lines)
