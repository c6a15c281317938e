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

-- name: take
-- One sender at a time: the instant that was read is compared and set.
UPDATE outbox SET next_at_ms = :next_at_ms
WHERE outbox_id = :outbox_id AND status = 'pending' AND next_at_ms = :expected;

-- name: hold
UPDATE outbox SET next_at_ms = :next_at_ms WHERE outbox_id = :outbox_id AND status = 'pending';

-- name: drop
-- Filed without a delivery; it does not count as one that was sent.
UPDATE outbox SET status = 'dead', last_error = :reason WHERE outbox_id = :outbox_id AND status = 'pending';

-- name: drop_due
UPDATE outbox SET status = 'dead', last_error = :reason WHERE status = 'pending' AND next_at_ms <= :now_ms;

-- name: sent_since
SELECT * FROM outbox WHERE goal_id = :goal_id AND kind = :kind AND sent_at_ms > :since_ms LIMIT 50;

-- name: pending_of
SELECT * FROM outbox WHERE goal_id = :goal_id AND kind = :kind AND sent_at_ms IS NULL AND status = 'pending'
ORDER BY outbox_id LIMIT 50;

-- name: latest
SELECT * FROM outbox ORDER BY outbox_id DESC LIMIT :limit;
