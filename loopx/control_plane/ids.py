"""Identity types. An id is opaque text; nothing parses one."""

from __future__ import annotations

from typing import NewType

GoalId = NewType("GoalId", str)
TodoId = NewType("TodoId", str)
AgentId = NewType("AgentId", str)
GateId = NewType("GateId", str)
TurnKey = NewType("TurnKey", str)
EffectRef = NewType("EffectRef", str)
Epoch = NewType("Epoch", int)
"""A lease's fencing token: it only grows."""
