"""A host for the rival's `turn run-once` that does nothing and answers with a typed result on standard output."""

import json
import sys

request = json.loads(sys.stdin.read() or "{}")
print(json.dumps({"result_kind": "validated_progress", "summary": "nothing to do", "echo": bool(request)}))
