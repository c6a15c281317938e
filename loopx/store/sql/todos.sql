-- name: insert
INSERT INTO todos (todo_id, goal_id, title, body, task_class, status, priority, open_deps, open_gates, checks,
  write_scope, reviews, wake_kind, wake_at_ms, wake_todo, wake, monitor, monitor_due_ms, reason, created_at_ms, updated_at_ms)
VALUES (:todo_id, :goal_id, :title, :body, :task_class, :status, :priority, :open_deps, :open_gates, :checks,
  :write_scope, :reviews, :wake_kind, :wake_at_ms, :wake_todo, :wake, :monitor, :monitor_due_ms, :reason, :now_ms, :now_ms);

-- name: insert_dep
INSERT INTO todo_deps (todo_id, depends_on) VALUES (:todo_id, :depends_on);

-- name: deps
SELECT depends_on FROM todo_deps WHERE todo_id = :todo_id ORDER BY depends_on;

-- name: dependents
SELECT todo_id FROM todo_deps WHERE depends_on = :todo_id;

-- name: get
SELECT * FROM todos WHERE todo_id = :todo_id;

-- name: page
SELECT * FROM todos WHERE goal_id = :goal_id AND todo_id > :after ORDER BY todo_id LIMIT :limit;

-- name: unended_page
-- Todos that have not ended, the most urgent first.
SELECT * FROM todos INDEXED BY todos_urgent
WHERE goal_id = :goal_id AND status <> 'done' AND status <> 'superseded'
ORDER BY priority DESC, todo_id LIMIT :limit;

-- name: ready
-- The todo that goes next: open, no unfinished dependency, no gate of its own. Claimed todos are not open.
SELECT todo_id, title, priority, write_scope FROM todos
WHERE goal_id = :goal_id AND status = 'open' AND open_deps = 0 AND open_gates = 0
  AND task_class IN ('advancement', 'review')
  AND (task_class <> 'review' OR reviews IS NULL
    OR NOT EXISTS (SELECT 1 FROM todos d WHERE d.todo_id = todos.reviews AND d.done_by = :agent_id))
ORDER BY priority DESC, todo_id LIMIT 1;

-- name: woken
-- A todo whose deferral is over, although nobody has written that down yet.
SELECT todo_id, title, priority, write_scope FROM todos
WHERE goal_id = :goal_id AND status IN ('blocked', 'deferred') AND wake_kind = 'instant' AND wake_at_ms <= :now_ms
  AND open_deps = 0 AND open_gates = 0 AND task_class IN ('advancement', 'review')
  AND (task_class <> 'review' OR reviews IS NULL
    OR NOT EXISTS (SELECT 1 FROM todos d WHERE d.todo_id = todos.reviews AND d.done_by = :agent_id))
ORDER BY priority DESC, todo_id LIMIT 1;

-- name: gated_only
-- A todo that nothing but so many gates holds back from this agent: open, woken, or claimed by nobody else.
SELECT t.todo_id, t.title, t.priority, t.write_scope FROM todos t LEFT JOIN leases l ON l.resource = 'todo:' || t.todo_id
WHERE t.todo_id = :todo_id AND t.open_deps = 0 AND t.open_gates = :gates AND t.task_class IN ('advancement', 'review')
  AND (t.status = 'open'
    OR (t.status IN ('blocked', 'deferred') AND t.wake_kind = 'instant' AND t.wake_at_ms <= :now_ms)
    OR (t.status = 'claimed'
      AND (t.claimed_by = :agent_id OR l.resource IS NULL OR l.expires_at_ms <= :now_ms)))
  AND (t.reviews IS NULL OR NOT EXISTS (SELECT 1 FROM todos d WHERE d.todo_id = t.reviews AND d.done_by = :agent_id));

-- name: any_ready_gated
SELECT EXISTS (SELECT 1 FROM todos INDEXED BY todos_gated
  WHERE goal_id = :goal_id AND status = 'open' AND open_deps = 0 AND open_gates > 0
  AND task_class IN ('advancement', 'review'));

-- name: any_unended
SELECT EXISTS (SELECT 1 FROM todos WHERE goal_id = :goal_id
  AND status <> 'done' AND status <> 'superseded');

-- name: any_unended_but
-- Whether anything but the named todo is still to be done.
SELECT EXISTS (SELECT 1 FROM todos WHERE goal_id = :goal_id
  AND status <> 'done' AND status <> 'superseded' AND todo_id <> :todo_id);

-- name: wake_at
-- When the next sleeping todo wakes, or is looked at; an instant that has come keeps nothing asleep.
SELECT MIN(wake_at_ms) FROM todos WHERE goal_id = :goal_id AND status IN ('blocked', 'deferred')
  AND wake_at_ms IS NOT NULL AND (wake_kind = 'probe' OR wake_at_ms > :now_ms);

-- name: any_without_wake
SELECT EXISTS (SELECT 1 FROM todos WHERE goal_id = :goal_id AND status IN ('blocked', 'deferred')
  AND wake_kind IS NULL);

-- name: claim
-- Claim an open todo. The caller has its lease already, in the same transaction.
UPDATE todos SET status = 'claimed', claimed_by = :agent_id, updated_at_ms = :now_ms,
  last_turn = COALESCE(:turn_key, last_turn)
WHERE todo_id = :todo_id AND goal_id = :goal_id AND status IN ('open', 'claimed') AND open_deps = 0 AND open_gates = 0;

-- name: reclaimable
-- A claimed todo that this agent may go on with: its own, or one whose lease ran out; never a review of its own work.
SELECT t.todo_id, t.title, t.write_scope FROM todos t LEFT JOIN leases l ON l.resource = 'todo:' || t.todo_id
WHERE t.goal_id = :goal_id AND t.status = 'claimed' AND t.open_deps = 0 AND t.open_gates = 0
  AND (t.claimed_by = :agent_id OR l.resource IS NULL OR l.expires_at_ms <= :now_ms)
  AND (t.reviews IS NULL OR NOT EXISTS (SELECT 1 FROM todos d WHERE d.todo_id = t.reviews AND d.done_by = :agent_id))
ORDER BY t.priority DESC, t.todo_id LIMIT 1;

-- name: claims_end_at
-- When the first claim of this goal runs out; one that has run out holds nothing up.
SELECT MIN(l.expires_at_ms) FROM todos t JOIN leases l ON l.resource = 'todo:' || t.todo_id
WHERE t.goal_id = :goal_id AND t.status = 'claimed' AND l.expires_at_ms > :now_ms;

-- name: release
UPDATE todos SET status = 'open', claimed_by = NULL, updated_at_ms = :now_ms
WHERE todo_id = :todo_id AND status = 'claimed';

-- name: let_go
-- What one agent claimed, unless another one has it by now.
UPDATE todos SET status = 'open', claimed_by = NULL, updated_at_ms = :now_ms
WHERE todo_id = :todo_id AND status = 'claimed' AND claimed_by = :agent_id;

-- name: finish
UPDATE todos SET status = 'done', done_by = :agent_id, claimed_by = NULL, continuation = :continuation,
  continuation_kind = :continuation_kind,
  updated_at_ms = :now_ms
WHERE todo_id = :todo_id AND status <> 'done' AND status <> 'superseded';

-- name: set_status
UPDATE todos SET status = :status, reason = :reason, wake_kind = :wake_kind, wake_at_ms = :wake_at_ms,
  wake_todo = :wake_todo, wake = :wake, claimed_by = NULL, updated_at_ms = :now_ms
WHERE todo_id = :todo_id AND status = :expected;

-- name: edit
UPDATE todos SET title = :title, body = :body, priority = :priority, checks = :checks, updated_at_ms = :now_ms
WHERE todo_id = :todo_id;

-- name: set_priority
UPDATE todos SET priority = :priority, updated_at_ms = :now_ms WHERE todo_id = :todo_id AND goal_id = :goal_id;

-- name: recount_deps
-- What the todos that wait for this one wait for now. Counted, not added up: the same todo ends and opens many times.
UPDATE todos SET updated_at_ms = :now_ms, open_deps = (
  SELECT COUNT(*) FROM todo_deps d JOIN todos o ON o.todo_id = d.depends_on
  WHERE d.todo_id = todos.todo_id AND o.status <> 'done' AND o.status <> 'superseded')
WHERE todo_id IN (SELECT todo_id FROM todo_deps WHERE depends_on = :todo_id);

-- name: wake_by_todo
-- Todos that were deferred or blocked until this one is done.
UPDATE todos SET status = 'open', wake_kind = NULL, wake_todo = NULL, wake = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND status IN ('deferred', 'blocked') AND wake_kind = 'todo_done' AND wake_todo = :todo_id
RETURNING todo_id;

-- name: any_wake_due
SELECT 1 AS found FROM todos WHERE goal_id = :goal_id AND status IN ('deferred', 'blocked')
  AND wake_kind = 'instant' AND wake_at_ms <= :now_ms LIMIT 1;

-- name: wake_by_instant
UPDATE todos SET status = 'open', wake_kind = NULL, wake_at_ms = NULL, wake = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND status IN ('deferred', 'blocked') AND wake_kind = 'instant' AND wake_at_ms <= :now_ms
RETURNING todo_id;

-- name: gate_delta
UPDATE todos SET open_gates = open_gates + :delta, updated_at_ms = :now_ms
WHERE todo_id = :todo_id AND open_gates + :delta >= 0;

-- name: monitor_due
SELECT todo_id, title FROM todos WHERE goal_id = :goal_id AND task_class = 'monitor' AND status = 'open'
  AND monitor_due_ms <= :now_ms ORDER BY monitor_due_ms LIMIT 1;

-- name: monitor_next
SELECT MIN(monitor_due_ms) FROM todos WHERE goal_id = :goal_id AND task_class = 'monitor' AND status = 'open';

-- name: set_monitor
UPDATE todos SET monitor = :monitor, monitor_due_ms = :monitor_due_ms, updated_at_ms = :now_ms
WHERE todo_id = :todo_id;

-- name: advance_monitor
-- Take one probe: the instant that was read is compared and set, so that nobody else runs the same one.
UPDATE todos SET monitor_due_ms = :monitor_due_ms
WHERE todo_id = :todo_id AND status = 'open' AND monitor_due_ms = :expected;

-- name: open_with_reason
-- An open todo that was made for one reason.
SELECT * FROM todos WHERE goal_id = :goal_id AND status <> 'done' AND status <> 'superseded'
  AND status = 'open' AND reason = :reason ORDER BY todo_id LIMIT 1;

-- name: probe_due
-- A deferral that a probe ends, and whose next look has come.
SELECT * FROM todos WHERE goal_id = :goal_id AND status IN ('blocked', 'deferred') AND wake_kind = 'probe'
  AND wake_at_ms <= :now_ms ORDER BY wake_at_ms LIMIT 1;

-- name: advance_probe
UPDATE todos SET wake_at_ms = :wake_at_ms
WHERE todo_id = :todo_id AND status IN ('blocked', 'deferred') AND wake_kind = 'probe' AND wake_at_ms = :expected;

-- name: exists_in_goal
SELECT 1 FROM todos WHERE todo_id = :todo_id AND goal_id = :goal_id;

-- name: claims
-- Claimed todos whose write scope may overlap with another's.
SELECT todo_id, write_scope FROM todos WHERE goal_id = :goal_id AND status = 'claimed' LIMIT 100;

-- name: missing_successors
-- Successors that completed todos promised and that do not exist.
SELECT s.value AS todo_id FROM todos d, json_each(d.continuation, '$.successors') s
WHERE d.goal_id = :goal_id AND d.status = 'done' AND d.continuation_kind = 'successor'
  AND NOT EXISTS (SELECT 1 FROM todos t WHERE t.todo_id = s.value) LIMIT 5;

-- name: close_all
UPDATE todos SET status = 'superseded', reason = 'goal_closed', claimed_by = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND status <> 'done' AND status <> 'superseded';

-- name: displace
-- The todo that stands for the goal itself gives way to a slice of it.
UPDATE todos SET status = 'superseded', claimed_by = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND reason = :reason AND status <> 'done' AND status <> 'superseded'
RETURNING todo_id;

-- name: ready_page
-- The todos that this agent may take now, the most urgent first.
SELECT * FROM todos
WHERE goal_id = :goal_id AND status = 'open' AND open_deps = 0 AND open_gates = 0
  AND task_class IN ('advancement', 'review')
  AND (task_class <> 'review' OR reviews IS NULL
    OR NOT EXISTS (SELECT 1 FROM todos d WHERE d.todo_id = todos.reviews AND d.done_by = :agent_id))
ORDER BY priority DESC, todo_id LIMIT :limit;

-- name: live_claims
-- What is claimed by others and not run out.
SELECT t.todo_id, t.write_scope, t.claimed_by FROM todos t JOIN leases l ON l.resource = 'todo:' || t.todo_id
WHERE t.goal_id = :goal_id AND t.status = 'claimed' AND l.expires_at_ms > :now_ms AND t.claimed_by <> :agent_id
LIMIT 200;

-- name: count_by_status
SELECT status, COUNT(*) AS n FROM todos WHERE goal_id = :goal_id GROUP BY status;

-- name: statuses
SELECT todo_id, status FROM todos WHERE goal_id = :goal_id;
