-- name: record
-- One use, once per effect, with the running total. The clock may go back; entries may not, or totals lose their order.
INSERT INTO meters (goal_id, unit, seq, effect_ref, amount, cumulative, at_ms)
SELECT :goal_id, :unit, COALESCE(last.seq, 0) + 1, :effect_ref, :amount, COALESCE(last.cumulative, 0) + :amount,
  CASE WHEN last.at_ms > :now_ms THEN last.at_ms ELSE :now_ms END
FROM (SELECT 1) AS once LEFT JOIN (SELECT seq, cumulative, at_ms FROM meters
  WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT 1) AS last ON 1 = 1
WHERE 1 = 1 ON CONFLICT (effect_ref, unit, goal_id) DO NOTHING;

-- name: before
SELECT cumulative FROM meters WHERE goal_id = :goal_id AND unit = :unit AND at_ms <= :start_ms
ORDER BY at_ms DESC, cumulative DESC LIMIT 1;

-- name: total
SELECT cumulative FROM meters WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT 1;

-- name: frees_at
SELECT at_ms FROM meters WHERE goal_id = :goal_id AND unit = :unit AND at_ms > :start_ms
  AND cumulative > :threshold ORDER BY at_ms, cumulative LIMIT 1;

-- name: recent
SELECT amount, at_ms FROM meters WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT :limit;

-- name: reserve
INSERT INTO reservations (turn_key, goal_id, unit, amount) VALUES (:turn_key, :goal_id, :unit, :amount);

-- name: reserved
SELECT COALESCE(SUM(amount), 0) FROM reservations WHERE goal_id = :goal_id AND unit = :unit;

-- name: reserved_by
-- What one turn holds of its goal's budgets; the slot is no budget.
SELECT unit, amount FROM reservations WHERE turn_key = :turn_key AND unit <> 'slots';

-- name: unreserve
DELETE FROM reservations WHERE turn_key = :turn_key;

-- name: first_since
-- The first use after an instant, from which a pace can be told.
SELECT at_ms FROM meters WHERE goal_id = :goal_id AND unit = :unit AND at_ms > :start_ms ORDER BY at_ms LIMIT 1;

-- name: latest
SELECT amount, effect_ref FROM meters WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT :limit;
