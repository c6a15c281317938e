-- name: insert
INSERT INTO turns (turn_key, goal_id, agent_id, todo_id, number, goal_revision, purpose, route, state, completed,
  closeout, epoch, engine, predecessor, discharged, slots, tree_before, envelope, decision, token_hash, choice,
  started_at_ms)
SELECT :turn_key, :goal_id, :agent_id, :todo_id, turn_count, revision, :purpose, :route, 'open', 0,
  'none', :epoch, :engine, :predecessor, 0, 0, :tree_before, :envelope, :decision, :token_hash, :choice, :now_ms
FROM goals WHERE goal_id = :goal_id RETURNING *;

-- name: get
SELECT * FROM turns WHERE turn_key = :turn_key;

-- name: phases
SELECT * FROM turn_phases WHERE turn_key = :turn_key ORDER BY ordinal;

-- name: open_of
-- The turn of this goal and agent that is not closed, if any.
SELECT turn_key, state FROM turns WHERE goal_id = :goal_id AND agent_id = :agent_id AND state <> 'closed';

-- name: open_of_goal
SELECT turn_key, agent_id, state FROM turns INDEXED BY turns_one_open WHERE goal_id = :goal_id AND state <> 'closed';

-- name: open_all
SELECT t.turn_key, t.goal_id, t.agent_id, t.state, t.number, t.started_at_ms, t.todo_id, t.engine, t.completed
FROM turns t INDEXED BY turns_one_open WHERE t.state <> 'closed' LIMIT :limit;

-- name: last_of_todo
SELECT turn_key FROM turns WHERE todo_id = :todo_id AND state = 'closed' ORDER BY number DESC LIMIT 1;

-- name: last_of_goal
SELECT turn_key FROM turns WHERE goal_id = :goal_id AND state = 'closed' ORDER BY number DESC LIMIT 1;

-- name: last_end
SELECT MAX(ended_at_ms) AS ended_at_ms FROM turns WHERE goal_id = :goal_id AND number > :after;

-- name: last_key
SELECT turn_key FROM turns WHERE goal_id = :goal_id ORDER BY number DESC LIMIT 1;

-- name: by_number
SELECT turn_key FROM turns WHERE goal_id = :goal_id AND number = :number;

-- name: page
SELECT turn_key FROM turns WHERE goal_id = :goal_id AND number < :before ORDER BY number DESC LIMIT :limit;

-- name: by_token
SELECT turn_key, goal_id, agent_id FROM turns WHERE token_hash = :token_hash AND state = 'open';

-- name: is_open
SELECT 1 FROM turns WHERE turn_key = :turn_key AND state = 'open';

-- name: move
-- The prefix of a turn, compared and set under its fence. No row changes when the lease is lost or the prefix moved.
UPDATE turns SET completed = :completed, epoch = :epoch
WHERE turn_key = :turn_key AND completed = :expected AND state = 'open'
  AND EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms);

-- name: insert_phase
INSERT INTO turn_phases (turn_key, ordinal, phase, effect_ref, receipt, epoch, committed_at_ms)
VALUES (:turn_key, :ordinal, :phase, :effect_ref, :receipt, :epoch, :now_ms);

-- name: set_result
UPDATE turns SET result = :result, intended_kind = :intended_kind, outcome = :outcome, delivery_kind = :delivery_kind,
  tree_after = :tree_after WHERE turn_key = :turn_key;

-- name: save
-- What a turn's row says of its own state, under the fence that `move` checked in the same transaction.
UPDATE turns SET state = :state, result_kind = :result_kind, failed_phase = :failed_phase, closeout = :closeout,
  slots = :slots, checkpoint = :checkpoint, ended_at_ms = :ended_at_ms
WHERE turn_key = :turn_key AND state = 'open';

-- name: block
UPDATE turns SET state = 'blocked', violation = :violation WHERE turn_key = :turn_key AND state = 'open';

-- name: unblock
UPDATE turns SET state = 'open', violation = NULL WHERE turn_key = :turn_key AND state = 'blocked';

-- name: discharge
UPDATE turns SET discharged = 1 WHERE turn_key = :turn_key;

-- name: discharge_goal
-- What an explicit run, an answered gate or a finished replan lets go of.
UPDATE turns SET discharged = 1 WHERE goal_id = :goal_id AND discharged = 0 AND state = 'closed'
  AND number > :after AND result_kind IN ('iteration_failed', 'user_action_required', 'replan_required',
    'validation_failed', 'host_failure', 'wait', 'writeback_failed', 'quota_spend_failed');

-- name: discharge_stops
-- An explicit run lets go of what a cancel, or an engine that failed, left behind.
UPDATE turns SET discharged = 1 WHERE goal_id = :goal_id AND discharged = 0 AND state = 'closed'
  AND number >= :from AND result_kind IN ('iteration_failed', 'host_failure');

-- name: start_epoch
-- A resumed turn takes the new epoch of its lease.
UPDATE turns SET epoch = :epoch WHERE turn_key = :turn_key AND state = 'open';

-- name: set_token
-- Another credential for the turn's agent, under the fence.
UPDATE turns SET token_hash = :token_hash WHERE turn_key = :turn_key AND state = 'open'
  AND EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms);

-- name: ack_closed
-- A closed turn whose scheduling was still pending at an outside owner.
SELECT turn_key, completed FROM turns WHERE goal_id = :goal_id AND state = 'closed' AND completed = 6
ORDER BY number DESC LIMIT 1;

-- name: ack
UPDATE turns SET completed = 7 WHERE turn_key = :turn_key AND completed = 6 AND state = 'closed';

-- name: insert_claim
-- What the agent says of its own turn; only while the turn is open.
INSERT INTO turn_claims (turn_key, seq, kind, body, at_ms)
SELECT turn_key, COALESCE((SELECT MAX(seq) FROM turn_claims WHERE turn_key = :turn_key), 0) + 1, :kind, :body, :now_ms
FROM turns WHERE turn_key = :turn_key AND state = 'open';

-- name: claims
SELECT * FROM turn_claims WHERE turn_key = :turn_key ORDER BY seq LIMIT 200;

-- name: recent_results
SELECT turn_key, number, result_kind, outcome, result FROM turns
WHERE goal_id = :goal_id AND state = 'closed' ORDER BY number DESC LIMIT :limit;

-- name: results_of_engine
-- How an engine's last turns of a goal ended, the newest first. Another engine's long reign ends the look back.
SELECT result_kind FROM (SELECT result_kind, engine, number FROM turns
  WHERE goal_id = :goal_id AND number < :before AND state = 'closed' ORDER BY number DESC LIMIT 100) AS recent
WHERE engine = :engine ORDER BY number DESC LIMIT :limit;

-- name: last_start
SELECT started_at_ms FROM turns WHERE goal_id = :goal_id ORDER BY number DESC LIMIT 1;

-- name: lines
-- Turns with what a list shows of them, the newest first.
SELECT * FROM turns WHERE goal_id = :goal_id AND number < :before ORDER BY number DESC LIMIT :limit;
