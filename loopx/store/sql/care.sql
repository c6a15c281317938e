-- name: goals
-- Every goal, for a look through the whole store.
SELECT goal_id, window_ms, run_index FROM goals ORDER BY goal_id;

-- name: entries
SELECT COUNT(*) FROM ledger WHERE goal_id = :goal_id;

-- name: turns
SELECT turn_key, completed, state FROM turns WHERE goal_id = :goal_id ORDER BY number;

-- name: reservations
-- What is held for turns that are over.
SELECT DISTINCT r.turn_key FROM reservations r JOIN turns t ON t.turn_key = r.turn_key WHERE t.state = 'closed';

-- name: claims
-- Claims that have run out, of todos that no open turn works on.
SELECT t.todo_id, t.goal_id, t.claimed_by FROM todos t LEFT JOIN leases l ON l.resource = 'todo:' || t.todo_id
WHERE t.status = 'claimed' AND (l.resource IS NULL OR l.expires_at_ms <= :now_ms)
  AND NOT EXISTS (SELECT 1 FROM turns o WHERE o.todo_id = t.todo_id AND o.state <> 'closed');

-- name: counters
-- Todos whose counts of open dependencies or questions differ from what is there.
SELECT * FROM (SELECT t.todo_id, t.goal_id, t.open_deps, t.open_gates,
    (SELECT COUNT(*) FROM todo_deps d JOIN todos o ON o.todo_id = d.depends_on
      WHERE d.todo_id = t.todo_id AND o.status NOT IN ('done', 'superseded')) AS deps,
    (SELECT COUNT(*) FROM gates g, json_each(g.todos) j
      WHERE g.goal_id = t.goal_id AND g.status = 'open' AND j.value = t.todo_id) AS gates
  FROM todos t WHERE t.status <> 'done' AND t.status <> 'superseded')
WHERE open_deps <> deps OR open_gates <> gates;

-- name: set_counters
UPDATE todos SET open_deps = :deps, open_gates = :gates WHERE todo_id = :todo_id;

-- name: dead_deliveries
SELECT COUNT(*) FROM outbox WHERE status = 'dead';

-- name: launches
-- Launches without an end, of turns that have one.
SELECT h.run_id, h.turn_key, h.goal_id, h.spool_dir FROM host_runs h
JOIN turns t ON t.turn_key = h.turn_key WHERE h.state = 'intended' AND t.state = 'closed' ORDER BY h.run_id;

-- name: abandon
-- A launch that nobody waits for any more.
UPDATE host_runs SET state = 'ended', ended_at_ms = :now_ms, end_kind = 'unknown'
WHERE run_id = :run_id AND state = 'intended'
  AND EXISTS (SELECT 1 FROM turns t WHERE t.turn_key = host_runs.turn_key AND t.state = 'closed');

-- name: old_launches
-- Launches whose turn was over before an instant, a page at a time.
SELECT h.run_id, h.spool_dir, t.turn_key FROM host_runs h JOIN turns t ON t.turn_key = h.turn_key
WHERE h.run_id > :after AND h.state = 'ended' AND t.state = 'closed' AND t.ended_at_ms < :before_ms
  AND h.spool_dir <> '' ORDER BY h.run_id LIMIT :limit;

-- name: over
-- Whether the turn of a launch is over.
SELECT t.state = 'closed' FROM host_runs h JOIN turns t ON t.turn_key = h.turn_key WHERE h.run_id = :run_id;

-- name: run
SELECT 1 FROM host_runs WHERE run_id = :run_id;

-- name: capability
SELECT 1 FROM capability_intents WHERE intent_id = :intent_id;

-- name: drop_cached_checks
DELETE FROM check_cache WHERE at_ms < :before_ms;

-- name: drop_sent
DELETE FROM outbox WHERE status IN ('sent', 'dead') AND created_at_ms < :before_ms;

-- name: drop_beats
DELETE FROM heartbeats WHERE at_ms < :before_ms;

-- name: count_cached_checks
SELECT COUNT(*) FROM check_cache WHERE at_ms < :before_ms;

-- name: count_sent
SELECT COUNT(*) FROM outbox WHERE status IN ('sent', 'dead') AND created_at_ms < :before_ms;

-- name: count_beats
SELECT COUNT(*) FROM heartbeats WHERE at_ms < :before_ms;

-- name: closed_goals
-- Goals that ended before an instant.
SELECT goal_id, state, updated_at_ms FROM goals
WHERE state IN ('completed', 'cancelled') AND updated_at_ms < :before_ms ORDER BY goal_id;
