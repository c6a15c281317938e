"""A smoke run of the delivery vocabulary: a legal kind stands, an illegal one becomes `unknown`, a claim cannot raise.

Run it with `python examples/delivery-turn-kind-enum-smoke.py`; it ends with 0 when all of that holds.
"""

from __future__ import annotations

import sys

from loopx.control_plane.work_items.delivery_outcome import (
    DeliveryOutcome,
    DeliveryTurnKind,
    lower,
    normalise_turn_kind,
)


def main() -> int:
    """Print what each word becomes; the number of surprises is the exit status."""
    derived = DeliveryTurnKind.PRODUCT_PATH_EXECUTION
    expected = {word: DeliveryTurnKind(word) for word in DeliveryTurnKind}
    cases: list[tuple[object, DeliveryTurnKind]] = [
        *expected.items(),
        (None, derived),
        ("product-path-execution", DeliveryTurnKind.UNKNOWN),
        ("Compact_Evidence", DeliveryTurnKind.UNKNOWN),
        ("", DeliveryTurnKind.UNKNOWN),
        (7, DeliveryTurnKind.UNKNOWN),
    ]
    surprises = 0
    for explicit, wanted in cases:
        made = normalise_turn_kind(explicit, derived)
        surprises += made is not wanted
        print(f"{'ok ' if made is wanted else 'BAD'} {explicit!r:32} -> {made}")
    raised = lower(DeliveryOutcome.PRIMARY_GOAL_OUTCOME, DeliveryOutcome.SURFACE_ONLY)
    surprises += raised is not DeliveryOutcome.SURFACE_ONLY
    print(f"{'ok ' if raised is DeliveryOutcome.SURFACE_ONLY else 'BAD'} a claim cannot raise the outcome -> {raised}")
    return surprises


if __name__ == "__main__":
    sys.exit(main())
