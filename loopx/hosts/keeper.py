"""The program of the keeper process: detaches, reads its order from standard input, and keeps one host.

It is run by file path with `python -I -S`, and must be up in milliseconds: it and all it imports use light standard
modules only, and the package's own `__init__` files, which are for people who import LoopX, are stepped over. It never
opens the store and never decides anything about a turn.
"""

from __future__ import annotations

import os
import sys

LOCK_FD = 3
"""The launcher hands over the locked `keeper.lock` at this number."""


def _light_packages() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("loopx", os.path.dirname(folder)), ("loopx.hosts", folder)):
        package = type(sys)(name)
        package.__path__ = [path]
        sys.modules[name] = package


def _read(size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(0, [view])
        if not got:
            # The launcher died while it spoke. Nothing was started; the lock goes with us.
            os._exit(1)
        view = view[got:]
    return data


def main() -> None:
    """Never returns to the launcher: the first process ends at once, its child is the keeper."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.set_inheritable(LOCK_FD, False)
    # Whatever else the launcher's own parents left open is not the host's business.
    os.closerange(LOCK_FD + 1, 1 << 16)
    sizes = _read(16)
    import marshal

    fields = marshal.loads(_read(int.from_bytes(sizes[:8], "little")))
    prompt = _read(int.from_bytes(sizes[8:], "little"))
    _light_packages()
    from loopx.hosts import keeper_loop

    keeper_loop.main(fields, prompt)


if __name__ == "__main__":
    main()
