"""A host for the rival's `turn run-once` that does nothing: it answers as the request's own contract asks."""

import json
import sys

request = json.loads(sys.stdin.read())
contract = request["result_contract"]
print(
    json.dumps(
        {
            "schema_version": contract["schema_version"],
            "turn_key": request["turn_key"],
            "result_kind": "validated_progress",
            "completed_phases": ["host_execute", "typed_result"],
            "classification": "bench",
            "summary": "nothing to do",
            "recommended_action": "go on",
            "next_action": "go on",
            "delivery_batch_scale": "single_surface",
            "delivery_outcome": "outcome_progress",
            "vision_unchanged_reason": "a bench",
        }
    )
)
