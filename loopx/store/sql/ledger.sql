-- name: by_effect
SELECT * FROM ledger WHERE effect_ref = :effect_ref;

-- name: last
SELECT * FROM ledger WHERE goal_id = :goal_id ORDER BY run_index DESC LIMIT 1;

-- name: last_spend
SELECT cumulative, at_ms FROM ledger WHERE goal_id = :goal_id AND kind = 'spend'
ORDER BY at_ms DESC, cumulative DESC LIMIT 1;

-- name: spent_since
-- The running total now, less that of the last spend which has left the window, less what was voided since.
SELECT COALESCE((SELECT cumulative FROM ledger WHERE goal_id = :goal_id AND kind = 'spend'
    ORDER BY at_ms DESC, cumulative DESC LIMIT 1), 0)
  - COALESCE((SELECT cumulative FROM ledger WHERE goal_id = :goal_id AND kind = 'spend' AND at_ms <= :start_ms
    ORDER BY at_ms DESC, cumulative DESC LIMIT 1), 0)
  - COALESCE((SELECT SUM(slots) FROM ledger WHERE goal_id = :goal_id AND kind = 'void'
    AND voided_at_ms > :start_ms), 0) AS spent;

-- name: voided_in_window
SELECT COALESCE(SUM(slots), 0) FROM ledger WHERE goal_id = :goal_id AND kind = 'void' AND voided_at_ms > :start_ms;

-- name: frees_at
-- The spend whose leaving brings the running total below the allowance.
SELECT at_ms FROM ledger WHERE goal_id = :goal_id AND kind = 'spend' AND cumulative > :threshold
ORDER BY cumulative LIMIT 1;

-- name: recount
-- The window's sum from the entries themselves, for the proof that the running totals are right.
SELECT COALESCE(SUM(CASE WHEN kind = 'spend' THEN slots ELSE 0 END), 0)
     - COALESCE(SUM(CASE WHEN kind = 'void' AND voided_at_ms > :start_ms THEN slots ELSE 0 END), 0)
FROM ledger WHERE goal_id = :goal_id AND (kind = 'void' OR at_ms > :start_ms);

-- name: insert
INSERT INTO ledger (goal_id, run_index, kind, effect_ref, turn_key, slots, cumulative, at_ms, voids, voided_at_ms, reason)
VALUES (:goal_id, :run_index, :kind, :effect_ref, :turn_key, :slots, :cumulative, :at_ms, :voids, :voided_at_ms, :reason);

-- name: move_index
-- The run index of the goal's quota, compared and set.
UPDATE goals SET run_index = run_index + 1 WHERE goal_id = :goal_id AND run_index = :expected;

-- name: entry
SELECT * FROM ledger WHERE goal_id = :goal_id AND run_index = :run_index;

-- name: page
SELECT * FROM ledger WHERE goal_id = :goal_id AND run_index > :after ORDER BY run_index LIMIT :limit;

-- name: latest
SELECT * FROM ledger WHERE goal_id = :goal_id ORDER BY run_index DESC LIMIT :limit;

-- name: total
-- Slots spent since the goal began, voids taken off.
SELECT COALESCE((SELECT cumulative FROM ledger WHERE goal_id = :goal_id AND kind = 'spend'
    ORDER BY at_ms DESC, cumulative DESC LIMIT 1), 0)
  - COALESCE((SELECT SUM(slots) FROM ledger WHERE goal_id = :goal_id AND kind = 'void' AND voided_at_ms > 0), 0);

-- name: void_of
SELECT * FROM ledger WHERE goal_id = :goal_id AND kind = 'void' AND voids = :run_index;

-- name: live_of_turn
-- The spend that stands for a turn: the newest that no void takes off.
SELECT s.* FROM ledger s WHERE s.turn_key = :turn_key AND s.kind = 'spend'
  AND NOT EXISTS (SELECT 1 FROM ledger v WHERE v.goal_id = s.goal_id AND v.kind = 'void' AND v.voids = s.run_index)
ORDER BY s.run_index DESC LIMIT 1;
