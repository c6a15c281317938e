-- name: insert
-- A new goal, with its counters at zero.
INSERT INTO goals (goal_id, state, revision, root, tree_key, objective, engine, compute, window_ms, slot_ms,
  allowed_slots, outcome_floor, breaker_threshold, budget_count, run_index, turn_count, event_seq, event_head,
  scheduled_seq, contract_state, floor_streak, idle_streak, failure_streak, host_failure_streak, replan_tried, capped, health,
  health_detail, due_at_ms, created_at_ms, updated_at_ms)
VALUES (:goal_id, 'active', 1, :root, :tree_key, :objective, :engine, :compute, :window_ms, :slot_ms,
  :allowed_slots, :outcome_floor, :breaker_threshold, :budget_count, 0, 0, 0, '',
  0, 'unknown', 0, 0, 0, 0, 0, 0, 'ok', '', :due_at_ms, :now_ms, :now_ms);

-- name: insert_revision
INSERT INTO goal_revisions (goal_id, revision, definition, at_ms) VALUES (:goal_id, :revision, :definition, :now_ms);

-- name: get
-- One goal's row, by its key.
SELECT * FROM goals WHERE goal_id = :goal_id;

-- name: definition
SELECT definition FROM goal_revisions WHERE goal_id = :goal_id AND revision = :revision;

-- name: exists
SELECT 1 FROM goals WHERE goal_id = :goal_id;

-- name: similar
-- Ids near a mistyped one, for the error's hint.
SELECT goal_id FROM goals WHERE goal_id LIKE :pattern ORDER BY goal_id LIMIT 5;

-- name: page
-- Goals by id, from a cursor.
SELECT * FROM goals WHERE goal_id > :after ORDER BY goal_id LIMIT :limit;

-- name: page_by_state
-- Goals of one state, the most recently changed first.
SELECT * FROM goals WHERE state = :state ORDER BY updated_at_ms DESC LIMIT :limit OFFSET :skip;

-- name: count_by_state
SELECT state, COUNT(*) AS n FROM goals GROUP BY state;

-- name: edit
-- A new revision, if the goal is still at the one that was read.
UPDATE goals SET revision = revision + 1, objective = :objective, engine = :engine, compute = :compute,
  window_ms = :window_ms, slot_ms = :slot_ms, allowed_slots = :allowed_slots, outcome_floor = :outcome_floor,
  breaker_threshold = :breaker_threshold, budget_count = :budget_count, contract_state = :contract_state,
  updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND revision = :revision;

-- name: set_state
-- A state change, if the goal is still in the state that was read.
UPDATE goals SET state = :state, due_at_ms = :due_at_ms, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND state = :expected;

-- name: set_due
UPDATE goals SET due_at_ms = :due_at_ms WHERE goal_id = :goal_id;

-- name: schedule
-- The computed wake, and how far into the goal's history it has looked: any later event asks for another look.
UPDATE goals SET due_at_ms = :due_at_ms, scheduled_seq = event_seq WHERE goal_id = :goal_id AND state = 'active';

-- name: to_look_at
-- Active goals whose wake has come.
SELECT goal_id, tree_key, due_at_ms FROM goals INDEXED BY goals_due
WHERE state = 'active' AND due_at_ms IS NOT NULL AND due_at_ms <= :now_ms
ORDER BY due_at_ms LIMIT :limit;

-- name: moved
-- Active goals that changed since their wake was computed.
SELECT goal_id, tree_key, due_at_ms FROM goals WHERE state = 'active' AND scheduled_seq < event_seq LIMIT :limit;

-- name: last_start
SELECT MAX(started_at_ms) AS started_at_ms FROM turns WHERE goal_id = :goal_id AND number > :after;

-- name: due
-- Active goals whose wake has come, the longest waiting first.
SELECT goal_id, due_at_ms FROM goals INDEXED BY goals_due
WHERE state = 'active' AND due_at_ms IS NOT NULL AND due_at_ms <= :now_ms ORDER BY due_at_ms LIMIT :limit;

-- name: next_due_after
SELECT MIN(due_at_ms) FROM goals INDEXED BY goals_due
WHERE state = 'active' AND due_at_ms IS NOT NULL AND due_at_ms > :now_ms;

-- name: next_due
SELECT MIN(due_at_ms) FROM goals INDEXED BY goals_due WHERE state = 'active' AND due_at_ms IS NOT NULL;

-- name: set_baseline
-- The baseline of the contract that was evaluated, once: not after another run's, and not after an edit.
UPDATE goals SET baseline = :baseline, evaluation = :evaluation, base_tree = COALESCE(base_tree, :base_tree), contract_state = :contract_state,
  contract_tree = :contract_tree, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND revision = :revision AND baseline IS NULL;

-- name: set_contract_seen
-- What a look at the tree found, if nothing has happened to the goal since.
UPDATE goals SET contract_state = :contract_state, contract_tree = :contract_tree
WHERE goal_id = :goal_id AND event_seq = :seen;

-- name: close_seen
-- Close a goal whose whole history was seen.
UPDATE goals SET state = 'completed', due_at_ms = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND event_seq = :seen AND state IN ('active', 'paused', 'stopped');

-- name: set_contract
UPDATE goals SET contract_state = :contract_state, contract_tree = :contract_tree WHERE goal_id = :goal_id;

-- name: set_accepted
UPDATE goals SET accepted = :accepted WHERE goal_id = :goal_id;

-- name: set_health
UPDATE goals SET health = :health, health_detail = :health_detail, updated_at_ms = :now_ms WHERE goal_id = :goal_id;

-- name: set_wait
UPDATE goals SET wait_kind = :wait_kind, wait_until_ms = :wait_until_ms, wait_detail = :wait_detail,
  due_at_ms = :due_at_ms, updated_at_ms = :now_ms
WHERE goal_id = :goal_id;

-- name: reset_streaks
UPDATE goals SET floor_streak = 0, idle_streak = 0, failure_streak = 0, host_failure_streak = 0, replan_tried = 0
WHERE goal_id = :goal_id;

-- name: open_breaker
-- Something beside the turns themselves shows that the plan does not hold: a replan is due.
UPDATE goals SET idle_streak = CASE WHEN idle_streak < breaker_threshold THEN breaker_threshold ELSE idle_streak END,
  replan_tried = 0, updated_at_ms = :now_ms
WHERE goal_id = :goal_id;

-- name: after_turn
-- What a closing turn leaves on its goal.
UPDATE goals SET floor_streak = :floor_streak, idle_streak = :idle_streak, failure_streak = :failure_streak,
  host_failure_streak = :host_failure_streak, replan_tried = :replan_tried, wait_kind = :wait_kind,
  wait_until_ms = :wait_until_ms, wait_detail = :wait_detail, due_at_ms = :due_at_ms, updated_at_ms = :now_ms
WHERE goal_id = :goal_id;

-- name: write_back
UPDATE goals SET contract_state = :contract_state, contract_tree = :contract_tree,
  last_checkpoint = COALESCE(:checkpoint, last_checkpoint), evaluation = COALESCE(:evaluation, evaluation)
WHERE goal_id = :goal_id;

-- name: close
UPDATE goals SET state = 'completed', due_at_ms = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND state IN ('active', 'paused', 'stopped');

-- name: next_turn_number
UPDATE goals SET turn_count = turn_count + 1, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND revision = :revision AND state = 'active';

-- name: same_tree_open
-- Another goal that has a turn open in the same work tree.
SELECT g.goal_id FROM goals g JOIN turns t ON t.goal_id = g.goal_id AND t.state = 'open'
WHERE g.tree_key = :tree_key AND g.state = 'active' AND g.goal_id <> :goal_id LIMIT 1;

-- name: same_tree_goals
SELECT goal_id, turn_count FROM goals WHERE tree_key = :tree_key AND state = 'active' AND goal_id <> :goal_id
ORDER BY goal_id LIMIT 20;

-- name: head
SELECT event_seq, event_head FROM goals WHERE goal_id = :goal_id;

-- name: move_head
-- The chain's head, compared and set in one statement.
UPDATE goals SET event_seq = :seq, event_head = :hash
WHERE goal_id = :goal_id AND event_seq = :expected_seq AND event_head = :expected_hash;

-- name: drop_baseline
-- Another contract wants another baseline; the start of the goal stays what it was.
UPDATE goals SET baseline = NULL, evaluation = NULL, contract_state = 'unknown' WHERE goal_id = :goal_id;

-- name: active_page
-- Active goals by id, from a cursor.
SELECT goal_id FROM goals INDEXED BY goals_active
WHERE state = 'active' AND goal_id > :after ORDER BY goal_id LIMIT :limit;

-- name: wake_active
-- Look at an active goal at once, because something about it changed.
UPDATE goals SET due_at_ms = :now_ms WHERE goal_id = :goal_id AND state = 'active';

-- name: set_capped
-- Whether a goal-wide budget is used up: only a person moves it on then.
UPDATE goals SET capped = :capped WHERE goal_id = :goal_id AND capped <> :capped;

-- name: attention
-- Active goals that may need a person for another reason than a gate, the newest trouble first.
SELECT goal_id FROM goals INDEXED BY goals_attention
WHERE state = 'active' AND (health <> 'ok' OR replan_tried = 1 OR capped = 1)
ORDER BY updated_at_ms DESC, goal_id DESC LIMIT :limit;

-- name: without_wake
-- Active goals that nothing will wake.
SELECT goal_id FROM goals INDEXED BY goals_without_wake WHERE state = 'active' AND due_at_ms IS NULL
ORDER BY updated_at_ms DESC, goal_id DESC LIMIT :limit;

-- name: next_up
-- Active goals by their next wake.
SELECT goal_id FROM goals INDEXED BY goals_due
WHERE state = 'active' AND due_at_ms IS NOT NULL ORDER BY due_at_ms LIMIT :limit;

-- name: closed_since
-- Goals of one state that changed since an instant, the newest first.
SELECT * FROM goals WHERE state = :state AND updated_at_ms >= :since_ms ORDER BY updated_at_ms DESC LIMIT :limit;
