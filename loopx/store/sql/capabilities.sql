-- name: insert
INSERT INTO capability_intents (intent_id, goal_id, agent_id, turn_key, capability, command, definition, reason,
  status, effect_ref, attempt, gate_id, created_at_ms, updated_at_ms)
VALUES (:intent_id, :goal_id, :agent_id, :turn_key, :capability, :command, :definition, :reason, :status,
  :effect_ref, 1, :gate_id, :now_ms, :now_ms)
ON CONFLICT (effect_ref) DO NOTHING;

-- name: get
SELECT * FROM capability_intents WHERE intent_id = :intent_id;

-- name: first_with_status
SELECT * FROM capability_intents WHERE goal_id = :goal_id AND status = :status ORDER BY intent_id LIMIT 1;

-- name: any_pending
SELECT EXISTS (SELECT 1 FROM capability_intents WHERE goal_id = :goal_id
  AND status IN ('requested', 'granted', 'running'));

-- name: move
UPDATE capability_intents SET status = :status, receipt = :receipt, updated_at_ms = :now_ms
WHERE intent_id = :intent_id AND status = :expected;

-- name: page
SELECT * FROM capability_intents WHERE goal_id = :goal_id AND intent_id > :after ORDER BY intent_id LIMIT :limit;

-- name: latest
SELECT * FROM capability_intents WHERE goal_id = :goal_id ORDER BY intent_id DESC LIMIT :limit;

-- name: by_effect
SELECT * FROM capability_intents WHERE effect_ref = :effect_ref;

-- name: by_gate
-- The intent that this question decides about.
SELECT * FROM capability_intents WHERE gate_id = :gate_id LIMIT 1;

-- name: set_gate
UPDATE capability_intents SET gate_id = :gate_id, attempt = :attempt, updated_at_ms = :now_ms WHERE intent_id = :intent_id;

-- name: latest_of_all
SELECT * FROM capability_intents ORDER BY intent_id DESC LIMIT :limit;

-- name: statuses
SELECT intent_id, status FROM capability_intents WHERE goal_id = :goal_id;
