"""Runs in the DBOS environment: a workflow of seven no-op steps, on SQLite with the settings that we use ourselves."""

import json
import resource
import sys
import time

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig


@sa.event.listens_for(sa.engine.Engine, "connect")
def _same_settings(connection, record):
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


@DBOS.step()
def step(number):
    return number


@DBOS.workflow()
def seven_steps():
    return sum(step(number) for number in range(7))


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    config: DBOSConfig = {"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    for _ in range(20):
        seven_steps()
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(count):
        seven_steps()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"wall_ms": (time.perf_counter() - wall) * 1000 / count, "cpu_ms": cpu * 1000 / count}))
    DBOS.destroy()


if __name__ == "__main__":
    main()
