-- name: insert
INSERT INTO evidence (evidence_id, goal_id, turn_key, todo_id, kind, produced, name, verdict, tree_hash, commit_sha,
  body, at_ms)
VALUES (:evidence_id, :goal_id, :turn_key, :todo_id, :kind, :produced, :name, :verdict, :tree_hash, :commit_sha,
  :body, :now_ms);

-- name: get
SELECT * FROM evidence WHERE evidence_id = :evidence_id;

-- name: page
SELECT * FROM evidence WHERE goal_id = :goal_id AND evidence_id > :after ORDER BY evidence_id LIMIT :limit;

-- name: latest
SELECT * FROM evidence WHERE goal_id = :goal_id ORDER BY evidence_id DESC LIMIT :limit;

-- name: of_turn
SELECT * FROM evidence WHERE turn_key = :turn_key ORDER BY evidence_id;

-- name: bind_commit
UPDATE evidence SET commit_sha = :commit_sha
WHERE turn_key = :turn_key AND produced = 'verified' AND tree_hash = :tree_hash;

-- name: cached_check
SELECT result FROM check_cache WHERE inputs = :inputs;

-- name: cache_check
INSERT INTO check_cache (inputs, result, at_ms) VALUES (:inputs, :result, :now_ms) ON CONFLICT (inputs) DO NOTHING;
