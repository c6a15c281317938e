-- name: insert
INSERT INTO events (goal_id, seq, kind, turn_key, at_ms, body, prev_hash, hash)
VALUES (:goal_id, :seq, :kind, :turn_key, :at_ms, :body, :prev_hash, :hash);

-- name: page
SELECT * FROM events WHERE goal_id = :goal_id AND seq > :after ORDER BY seq LIMIT :limit;

-- name: latest
SELECT * FROM events WHERE goal_id = :goal_id ORDER BY seq DESC LIMIT :limit;

-- name: since
-- Everything that changed since an instant, in order.
SELECT * FROM events WHERE at_ms >= :since_ms ORDER BY at_ms, goal_id, seq LIMIT :limit;

-- name: goals_with_events
SELECT DISTINCT goal_id FROM events ORDER BY goal_id;

-- name: newest
-- The last few changes of all goals: what a page compares to see that something moved.
SELECT goal_id, seq FROM events ORDER BY at_ms DESC, goal_id DESC, seq DESC LIMIT :limit;

-- name: last_end
-- What was last said about the goal's end.
SELECT body FROM events WHERE goal_id = :goal_id
  AND kind IN ('goal_completed', 'goal_stopped', 'goal_cancelled') ORDER BY seq DESC LIMIT 1;

-- name: goal_since
-- What changed of one goal since an instant; the time index, because a goal's own history may be long.
SELECT * FROM events INDEXED BY events_by_time WHERE at_ms >= :since_ms AND goal_id = :goal_id
ORDER BY at_ms, goal_id, seq LIMIT :limit;

-- name: latest_all
-- The newest changes of all goals.
SELECT * FROM events ORDER BY at_ms DESC, goal_id DESC, seq DESC LIMIT :limit;
