"""Giving a cadence to an owner outside: a systemd user timer or a crontab line, written and then read back.

Only what was read back as written is acknowledged. A rule that the owner can't express is refused, never rounded. No
timer but the goal's own is touched.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from loopx.control_plane.errors import EngineError, UsageError
from loopx.control_plane.scheduler import cadence as cadences
from loopx.control_plane.scheduler.rrule_text import Frequency, Rule, parse_rrule
from loopx.control_plane.scheduler.schedule import Schedule, ScheduleOwner
from loopx.runtime.project import STORE_NAME, Project
from loopx.runtime.schedule_service import local_zone
from loopx.runtime.service_unit import PASSED_ON

_ANSWER_S = 20
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner is to have. `files`: path and text; `line`: a crontab line with its mark at the end."""

    owner: str
    goal_id: str
    name: str
    files: tuple[tuple[str, str], ...] = ()
    line: str | None = None
    mark: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, whether it was read back as written, and the commands that are left to a person."""

    confirmed: bool
    written: tuple[str, ...]
    left: tuple[str, ...] = ()


def plan(schedule: Schedule, project: Project, env: Mapping[str, str]) -> Plan:
    """What to give to the owner.

    Raises UsageError: `owner_inside`, `no_rule`, `rrule_not_expressible`, `zone_differs`.
    """
    if schedule.owner not in (ScheduleOwner.CRON, ScheduleOwner.SYSTEMD):
        raise UsageError(
            "owner_inside",
            f"the owner of this cadence is {schedule.owner}: there is nothing to install",
            hint=f"loopx schedule set {schedule.goal_id} --owner systemd ..., or run: loopx worker",
        )
    if schedule.rrule is None:
        raise UsageError(
            "no_rule", "this goal has no cadence", hint=f"loopx schedule set {schedule.goal_id} --rrule RULE"
        )
    rule = parse_rrule(schedule.rrule)
    start = cadences.local_datetime(cadences.parse_local(schedule.dtstart_local or ""))
    times = _Times(rule, start.hour, start.minute, start.weekday(), start.day)
    words = _command(schedule.goal_id, project)
    if schedule.owner is ScheduleOwner.CRON:
        return _crontab(schedule, project, times, words, env)
    return _timer(schedule, project, times, words, env)


def _command(goal_id: str, project: Project) -> tuple[str, ...]:
    words = (sys.executable, "-m", "loopx", "turn", "run-once", goal_id, "--project", project.root)
    usual = os.path.join(project.state_dir, STORE_NAME)
    return words if project.database == usual else (*words, "--database", project.database)


def _inexpressible(owner: str, why: str) -> UsageError:
    return UsageError(
        "rrule_not_expressible",
        f"{owner} can't say this rule: {why}",
        hint="let LoopX keep it: --owner loopx, with loopx worker running",
        data={"owner": owner},
    )


class _Times:
    """The parts of a rule that a timer or a crontab can say, or a refusal."""

    def __init__(self, rule: Rule, hour: int, minute: int, weekday: int, day: int) -> None:
        self.rule = rule
        self.hours = rule.by_hour or (hour,)
        self.minutes = rule.by_minute or (minute,)
        self.weekdays = tuple(one.weekday for one in rule.by_weekday)
        self.days = rule.by_month_day
        if rule.freq is Frequency.WEEKLY and not self.weekdays:
            self.weekdays = (weekday,)
        if rule.freq is Frequency.MONTHLY and not (self.days or self.weekdays):
            self.days = (day,)

    def require_simple(self, owner: str) -> None:
        """Raises UsageError (`rrule_not_expressible`)."""
        rule = self.rule
        for part, value in (
            ("COUNT", rule.count),
            ("UNTIL", rule.until),
            ("BYSETPOS", rule.by_set_pos),
            ("BYWEEKNO", rule.by_week),
            ("BYYEARDAY", rule.by_year_day),
        ):
            if value:
                raise _inexpressible(owner, f"{part} is beyond it")
        if rule.freq is Frequency.YEARLY:
            raise _inexpressible(owner, "FREQ=YEARLY is beyond it")
        if not rule.elapsed and rule.interval != 1:
            raise _inexpressible(owner, f"INTERVAL={rule.interval} is beyond it")
        if any(one.ordinal for one in rule.by_weekday) or any(day < 1 for day in self.days):
            raise _inexpressible(owner, "days counted from a month's end or by ordinal are beyond it")
        if self.weekdays and self.days:
            raise _inexpressible(owner, "weekdays and days of the month at once are beyond it")
        if rule.elapsed and (rule.by_hour or rule.by_minute or self.weekdays or self.days or rule.by_month):
            raise _inexpressible(owner, "an interval with filters is beyond it")


# -- systemd -------------------------------------------------------------------------------------------------------


def on_timer(schedule: Schedule, times: _Times) -> tuple[str, ...]:
    """The `[Timer]` lines of a cadence."""
    times.require_simple("systemd")
    rule = times.rule
    if rule.elapsed:
        minutes = rule.interval * (60 if rule.freq is Frequency.HOURLY else 1)
        return ("OnActiveSec=0", f"OnUnitActiveSec={minutes}min")
    days = f"{','.join(_DAYS[day] for day in times.weekdays)} " if times.weekdays else ""
    months = ",".join(f"{month:02d}" for month in rule.by_month) or "*"
    dates = ",".join(f"{day:02d}" for day in times.days) or "*"
    hours = ",".join(f"{hour:02d}" for hour in times.hours)
    minutes_text = ",".join(f"{minute:02d}" for minute in times.minutes)
    return (f"OnCalendar={days}*-{months}-{dates} {hours}:{minutes_text}:00 {schedule.zone}", "Persistent=true")


def _timer(schedule: Schedule, project: Project, times: _Times, words: tuple[str, ...], env: Mapping[str, str]) -> Plan:
    name = f"loopx-{project.project_id}-{schedule.goal_id}"
    folder = unit_folder(env)
    variables = {"PATH": env.get("PATH", os.defpath), **{key: env[key] for key in PASSED_ON if env.get(key)}}
    service = [
        "[Unit]",
        f"Description=LoopX: one turn of {schedule.goal_id}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={project.root.replace('%', '%%')}",
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in sorted(variables.items())),
        f"ExecStart={' '.join(_quoted(word) for word in words)}",
        "KillMode=process",
        # Not now, and a person is needed, are answers and no failures of the unit.
        "SuccessExitStatus=10 11 12 14",
        "",
    ]
    timer = [
        "[Unit]",
        f"Description=LoopX: the cadence of {schedule.goal_id}, revision {schedule.revision}",
        "",
        "[Timer]",
        *on_timer(schedule, times),
        f"Unit={name}.service",
        "",
        "[Install]",
        "WantedBy=timers.target",
        "",
    ]
    files = (
        (os.path.join(folder, f"{name}.service"), "\n".join(service)),
        (os.path.join(folder, f"{name}.timer"), "\n".join(timer)),
    )
    return Plan(owner="systemd", goal_id=schedule.goal_id, name=f"{name}.timer", files=files)


def unit_folder(env: Mapping[str, str]) -> str:
    """Where this user's units are."""
    config = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(config, "systemd", "user")


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


# -- cron ----------------------------------------------------------------------------------------------------------


def cron_times(times: _Times) -> str:
    """The five fields of a crontab line."""
    times.require_simple("cron")
    rule = times.rule
    if rule.freq is Frequency.MINUTELY:
        if 60 % rule.interval:
            raise _inexpressible("cron", f"{rule.interval} minutes do not divide an hour")
        return "* * * * *" if rule.interval == 1 else f"*/{rule.interval} * * * *"
    minutes = ",".join(map(str, times.minutes))
    if rule.freq is Frequency.HOURLY:
        if 24 % rule.interval:
            raise _inexpressible("cron", f"{rule.interval} hours do not divide a day")
        return f"{minutes} * * * *" if rule.interval == 1 else f"{minutes} */{rule.interval} * * *"
    days = ",".join(map(str, times.days)) or "*"
    months = ",".join(map(str, rule.by_month)) or "*"
    weekdays = ",".join(str((day + 1) % 7) for day in times.weekdays) or "*"
    return f"{minutes} {','.join(map(str, times.hours))} {days} {months} {weekdays}"


def _crontab(
    schedule: Schedule, project: Project, times: _Times, words: tuple[str, ...], env: Mapping[str, str]
) -> Plan:
    if not times.rule.elapsed and schedule.zone != local_zone():
        raise UsageError(
            "zone_differs",
            f"cron keeps this machine's time ({local_zone()}), and the cadence is in {schedule.zone}",
            hint="use --owner systemd, or --owner loopx",
        )
    mark = f"# loopx {project.project_id} {schedule.goal_id}"
    variables = [f"{key}={shlex.quote(env[key])}" for key in PASSED_ON if env.get(key)]
    command = " ".join([*variables, shlex.join(words)]).replace("%", "\\%")
    line = f"{cron_times(times)} {command} {mark}"
    return Plan(owner="cron", goal_id=schedule.goal_id, name="crontab", line=line, mark=mark)


# -- writing, reading back, removing --------------------------------------------------------------------------------


def install(made: Plan) -> Outcome:
    """Write it and read it back. Raises EngineError (`crontab_failed`), UsageError (`unit_unwritable`)."""
    return _install_line(made) if made.line is not None else _install_files(made)


def _install_line(made: Plan) -> Outcome:
    lines = [line for line in _crontab_lines() if not line.endswith(made.mark)]
    assert made.line is not None
    _write_crontab([*lines, made.line])
    return Outcome(confirmed=made.line in _crontab_lines(), written=(made.line,))


def _crontab_lines() -> list[str]:
    done = _run("crontab", "-l")
    # Without a crontab of the user's, the program says so and exits 1.
    return done.stdout.splitlines() if done.returncode == 0 else []


def _write_crontab(lines: list[str]) -> None:
    done = _run("crontab", "-", text="".join(f"{line}\n" for line in lines))
    if done.returncode != 0:
        raise EngineError(
            "crontab_failed", f"crontab: {done.stderr.strip()[:200]}", hint="loopx schedule install --print"
        )


def _install_files(made: Plan) -> Outcome:
    for path, text in made.files:
        _write(path, text)
    written = tuple(path for path, _ in made.files)
    steps = (("daemon-reload",), ("enable", "--now", made.name))
    for index, step in enumerate(steps):
        if not _systemctl(*step):
            left = tuple(" ".join(("systemctl", "--user", *one)) for one in steps[index:])
            return Outcome(confirmed=False, written=written, left=left)
    shown = _run("systemctl", "--user", "cat", made.name).stdout.splitlines()
    wanted = [line for line in made.files[-1][1].splitlines() if line]
    return Outcome(confirmed=all(line in shown for line in wanted), written=written)


def remove(goal_id: str, project: Project, env: Mapping[str, str]) -> tuple[str, ...]:
    """Take this goal's timer and crontab line away, whatever the cadence says now; what was removed."""
    removed: list[str] = []
    mark = f"# loopx {project.project_id} {goal_id}"
    if shutil.which("crontab") is not None:
        lines = _crontab_lines()
        kept = [line for line in lines if not line.endswith(mark)]
        if kept != lines:
            _write_crontab(kept)
            removed.append(mark)
    for path in timer_files(goal_id, project, env):
        if path.endswith(".timer"):
            _systemctl("disable", "--now", os.path.basename(path))
        os.unlink(path)
        removed.append(path)
    return tuple(removed)


def timer_files(goal_id: str, project: Project, env: Mapping[str, str]) -> tuple[str, ...]:
    """The unit files of this goal that exist."""
    folder = unit_folder(env)
    names = (f"loopx-{project.project_id}-{goal_id}.{kind}" for kind in ("timer", "service"))
    return tuple(path for name in names if os.path.exists(path := os.path.join(folder, name)))


def _write(path: str, text: str) -> None:
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(
            "unit_unwritable", f"{path} can't be written: {error.strerror}", hint="loopx schedule install --print"
        ) from error


def _systemctl(*words: str) -> bool:
    return shutil.which("systemctl") is not None and _run("systemctl", "--user", *words).returncode == 0


def _run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Raises EngineError (`program_missing`, `program_silent`)."""
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except FileNotFoundError as error:
        raise EngineError(
            "program_missing", f"there is no {words[0]} on this machine", hint="loopx schedule install --print"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            "program_silent", f"{words[0]} did not answer in {_ANSWER_S} s", hint="try it by hand"
        ) from error
