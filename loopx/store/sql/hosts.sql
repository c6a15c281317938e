-- name: insert
-- The intent to run a host, before it runs; under the turn's fence.
INSERT INTO host_runs (run_id, turn_key, goal_id, engine, attempt, state, spool_dir, resumes, started_at_ms,
  prompt_bytes, overhead_bytes)
SELECT :run_id, :turn_key, :goal_id, :engine, :attempt, 'intended', :spool_dir, :resumes, :now_ms,
  :prompt_bytes, :overhead_bytes
WHERE EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms);

-- name: of_turn
SELECT * FROM host_runs WHERE turn_key = :turn_key ORDER BY attempt;

-- name: last_of_turn
SELECT * FROM host_runs WHERE turn_key = :turn_key ORDER BY attempt DESC LIMIT 1;

-- name: open_all
SELECT * FROM host_runs WHERE state = 'intended' LIMIT :limit;

-- name: end
-- The first end counts.
UPDATE host_runs SET state = 'ended', ended_at_ms = :now_ms, end_kind = :end_kind, handed_over = :handed_over,
  session_id = :session_id, input_tokens = :input_tokens, cached_tokens = :cached_tokens,
  output_tokens = :output_tokens, reasoning_tokens = :reasoning_tokens, cost_microusd = :cost_microusd,
  raw_usage = :raw_usage, summary = :summary
WHERE run_id = :run_id AND state = 'intended';

-- name: abandon
-- A launch of which it is proved that nothing ever ran, nor will.
UPDATE host_runs SET state = 'ended', ended_at_ms = :now_ms, end_kind = 'never_started', handed_over = 0
WHERE run_id = :run_id AND state = 'intended'
  AND EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms);

-- name: set_aside
-- A resume that met no session: it is over, and has no report, so that the same turn launches a fresh one.
UPDATE host_runs SET state = 'ended', ended_at_ms = :now_ms, end_kind = :end_kind, handed_over = :handed_over,
  input_tokens = :input_tokens, cached_tokens = :cached_tokens, output_tokens = :output_tokens,
  reasoning_tokens = :reasoning_tokens, cost_microusd = :cost_microusd
WHERE run_id = :run_id AND state = 'intended'
  AND EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms);

-- name: began_here
SELECT 1 FROM host_runs WHERE session_id = :session_id AND resumes IS NULL LIMIT 1;

-- name: runs_of_session
SELECT COUNT(*) FROM host_runs WHERE session_id = :session_id;

-- name: last_session_usage
-- The last running total of a session.
SELECT raw_usage FROM host_runs WHERE session_id = :session_id AND raw_usage IS NOT NULL
ORDER BY ended_at_ms DESC LIMIT 1;

-- name: totals_of_turn
SELECT SUM(input_tokens) AS input_tokens, SUM(cached_tokens) AS cached_tokens, SUM(output_tokens) AS output_tokens,
  SUM(cost_microusd) AS cost_microusd FROM host_runs WHERE turn_key = :turn_key;
