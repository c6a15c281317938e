-- name: insert
-- Ask once: an open gate with the same key is kept.
INSERT INTO gates (gate_id, goal_id, kind, question, options, blocks_goal, todos, dedupe_key, status, fix, turn_key,
  created_at_ms, expires_at_ms)
VALUES (:gate_id, :goal_id, :kind, :question, :options, :blocks_goal, :todos, :dedupe_key, 'open', :fix, :turn_key,
  :now_ms, :expires_at_ms)
ON CONFLICT (goal_id, dedupe_key) WHERE status = 'open' DO NOTHING;

-- name: get
SELECT * FROM gates WHERE gate_id = :gate_id;

-- name: by_key
SELECT * FROM gates WHERE goal_id = :goal_id AND dedupe_key = :dedupe_key AND status = 'open';

-- name: open_of_goal
-- A few open gates, those that block the whole goal first.
SELECT * FROM gates WHERE goal_id = :goal_id AND status = 'open' ORDER BY blocks_goal DESC, gate_id LIMIT :limit;

-- name: open_all
SELECT * FROM gates WHERE status = 'open' ORDER BY created_at_ms LIMIT :limit;

-- name: page
SELECT * FROM gates WHERE goal_id = :goal_id AND gate_id > :after ORDER BY gate_id LIMIT :limit;

-- name: answer
-- The first answer counts.
UPDATE gates SET status = 'answered', answer = :answer, answered_by = :answered_by, answered_at_ms = :now_ms
WHERE gate_id = :gate_id AND status = 'open';

-- name: expire
UPDATE gates SET status = 'expired', answered_at_ms = :now_ms WHERE gate_id = :gate_id AND status = 'open';

-- name: expired
SELECT * FROM gates WHERE goal_id = :goal_id AND status = 'open' AND expires_at_ms <= :now_ms LIMIT 50;

-- name: any_open
SELECT EXISTS (SELECT 1 FROM gates WHERE goal_id = :goal_id AND status = 'open');

-- name: last_answered
-- Answers that the next turn's prompt should hear of: the newest answers, whatever the age of their questions.
SELECT * FROM gates WHERE goal_id = :goal_id AND status = 'answered'
ORDER BY answered_at_ms DESC, gate_id DESC LIMIT :limit;

-- name: ever_granted
SELECT 1 AS found FROM grants WHERE goal_id = :goal_id AND scope = :scope LIMIT 1;

-- name: insert_grant
INSERT INTO grants (grant_id, goal_id, scope, answer, granted_by, created_at_ms, expires_at_ms, revoked)
VALUES (:grant_id, :goal_id, :scope, :answer, :granted_by, :now_ms, :expires_at_ms, 0);

-- name: grants
SELECT * FROM grants WHERE goal_id = :goal_id AND grant_id > :after ORDER BY grant_id LIMIT :limit;

-- name: live_grant
SELECT * FROM grants WHERE goal_id = :goal_id AND scope = :scope AND revoked = 0
  AND (expires_at_ms IS NULL OR expires_at_ms > :now_ms) ORDER BY grant_id DESC LIMIT 1;

-- name: revoke_grant
UPDATE grants SET revoked = 1 WHERE grant_id = :grant_id AND revoked = 0;

-- name: get_grant
SELECT * FROM grants WHERE grant_id = :grant_id;

-- name: count_open
-- How many questions are open, counted no further than a limit.
SELECT COUNT(*) FROM (SELECT 1 FROM gates WHERE status = 'open' LIMIT :limit);

-- name: statuses
SELECT gate_id, status FROM gates WHERE goal_id = :goal_id;
