-- name: last
SELECT seq, cumulative, at_ms FROM meters WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT 1;

-- name: exists
SELECT 1 FROM meters WHERE effect_ref = :effect_ref AND unit = :unit AND goal_id = :goal_id;

-- name: insert
INSERT INTO meters (goal_id, unit, seq, effect_ref, amount, cumulative, at_ms)
VALUES (:goal_id, :unit, :seq, :effect_ref, :amount, :cumulative, :at_ms);

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

-- name: unreserve
DELETE FROM reservations WHERE turn_key = :turn_key;

-- name: first_since
-- The first use after an instant, from which a pace can be told.
SELECT at_ms FROM meters WHERE goal_id = :goal_id AND unit = :unit AND at_ms > :start_ms ORDER BY at_ms LIMIT 1;

-- name: latest
SELECT amount, effect_ref FROM meters WHERE goal_id = :goal_id AND unit = :unit ORDER BY seq DESC LIMIT :limit;
