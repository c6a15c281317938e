"""`python -m loopx` is the `loopx` command."""

from loopx.cli import main

raise SystemExit(main())
