-- name: insert
-- Recorded in the transaction that causes it; the same key is recorded once.
INSERT INTO outbox (outbox_id, goal_id, effect_key, kind, payload, status, attempts, next_at_ms, last_error,
  created_at_ms)
VALUES (:outbox_id, :goal_id, :effect_key, :kind, :payload, 'pending', 0, :next_at_ms, '', :now_ms)
ON CONFLICT (effect_key) DO NOTHING;

-- name: due
SELECT * FROM outbox WHERE status = 'pending' AND next_at_ms <= :now_ms ORDER BY next_at_ms LIMIT :limit;

-- name: next_at
SELECT MIN(next_at_ms) FROM outbox WHERE status = 'pending';

-- name: sent
UPDATE outbox SET status = 'sent', sent_at_ms = :now_ms, attempts = attempts + 1
WHERE outbox_id = :outbox_id AND status = 'pending';

-- name: failed
UPDATE outbox SET attempts = attempts + 1, next_at_ms = :next_at_ms, last_error = :last_error,
  status = :status WHERE outbox_id = :outbox_id AND status = 'pending';

-- name: page
SELECT * FROM outbox WHERE outbox_id > :after ORDER BY outbox_id LIMIT :limit;
