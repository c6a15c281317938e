-- The first schema. Type names in braces are rendered per dialect (schema.py): {int} is 64-bit, {text} is UTF-8,
-- {bool} is 0 or 1 in SQLite, {json} is JSON text, {real} is a double. Every default is computed in Python.

CREATE TABLE store_meta (
  key {text} NOT NULL PRIMARY KEY,
  value {text} NOT NULL
){strict};

CREATE TABLE goals (
  goal_id {text} NOT NULL PRIMARY KEY,
  state {text} NOT NULL CHECK (
    state = 'active' OR state = 'paused' OR state = 'stopped'
    OR state = 'completed' OR state = 'cancelled'),
  revision {int} NOT NULL,
  root {text} NOT NULL,
  tree_key {text} NOT NULL,
  objective {text} NOT NULL,
  engine {text} NOT NULL,
  compute {real} NOT NULL,
  window_ms {int} NOT NULL,
  slot_ms {int} NOT NULL,
  allowed_slots {int} NOT NULL,
  outcome_floor {int} NOT NULL,
  breaker_threshold {int} NOT NULL,
  budget_count {int} NOT NULL,
  run_index {int} NOT NULL,
  turn_count {int} NOT NULL,
  event_seq {int} NOT NULL,
  event_head {text} NOT NULL,
  scheduled_seq {int} NOT NULL,
  contract_state {text} NOT NULL CHECK (contract_state = 'green' OR contract_state = 'red' OR contract_state = 'unknown'),
  contract_tree {text},
  base_tree {text},
  accepted {json},
  last_checkpoint {text},
  baseline {json},
  evaluation {json},
  floor_streak {int} NOT NULL,
  idle_streak {int} NOT NULL,
  failure_streak {int} NOT NULL,
  host_failure_streak {int} NOT NULL,
  replan_tried {bool} NOT NULL,
  capped {bool} NOT NULL,
  wait_kind {text},
  wait_until_ms {int},
  wait_detail {text},
  health {text} NOT NULL,
  health_detail {text} NOT NULL,
  due_at_ms {int},
  created_at_ms {int} NOT NULL,
  updated_at_ms {int} NOT NULL
){strict};
CREATE INDEX goals_due ON goals (due_at_ms) WHERE state = 'active' AND due_at_ms IS NOT NULL;
CREATE INDEX goals_moved ON goals (event_seq) WHERE state = 'active' AND scheduled_seq < event_seq;
CREATE INDEX goals_by_state ON goals (state, updated_at_ms);
CREATE INDEX goals_active ON goals (goal_id) WHERE state = 'active';
CREATE INDEX goals_attention ON goals (updated_at_ms, goal_id)
  WHERE state = 'active' AND (health <> 'ok' OR replan_tried = 1 OR capped = 1);
CREATE INDEX goals_without_wake ON goals (updated_at_ms, goal_id) WHERE state = 'active' AND due_at_ms IS NULL;
CREATE INDEX goals_by_tree ON goals (tree_key) WHERE state = 'active';

CREATE TABLE goal_revisions (
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  revision {int} NOT NULL,
  definition {json} NOT NULL,
  at_ms {int} NOT NULL,
  PRIMARY KEY (goal_id, revision)
){strict};

CREATE TABLE todos (
  todo_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  title {text} NOT NULL,
  body {text} NOT NULL,
  task_class {text} NOT NULL CHECK (
    task_class = 'advancement' OR task_class = 'monitor'
    OR task_class = 'user' OR task_class = 'review'),
  status {text} NOT NULL CHECK (
    status = 'open' OR status = 'claimed' OR status = 'done'
    OR status = 'blocked' OR status = 'deferred' OR status = 'superseded'),
  priority {int} NOT NULL,
  open_deps {int} NOT NULL CHECK (open_deps >= 0),
  open_gates {int} NOT NULL CHECK (open_gates >= 0),
  checks {json} NOT NULL,
  write_scope {json} NOT NULL,
  reviews {text},
  wake_kind {text},
  wake_at_ms {int},
  wake_todo {text},
  wake {json},
  monitor {json},
  monitor_due_ms {int},
  continuation {json},
  continuation_kind {text},
  claimed_by {text},
  done_by {text},
  last_turn {text},
  reason {text} NOT NULL,
  created_at_ms {int} NOT NULL,
  updated_at_ms {int} NOT NULL
){strict};
CREATE INDEX todos_ready ON todos (goal_id, priority DESC, todo_id)
  WHERE status = 'open' AND open_deps = 0 AND open_gates = 0 AND task_class IN ('advancement', 'review');
CREATE INDEX todos_gated ON todos (goal_id)
  WHERE status = 'open' AND open_deps = 0 AND open_gates > 0 AND task_class IN ('advancement', 'review');
CREATE INDEX todos_unended ON todos (goal_id, status) WHERE status <> 'done' AND status <> 'superseded';
CREATE INDEX todos_urgent ON todos (goal_id, priority DESC, todo_id)
  WHERE status <> 'done' AND status <> 'superseded';
CREATE INDEX todos_by_status ON todos (goal_id, status);
CREATE INDEX todos_wake ON todos (goal_id, wake_at_ms) WHERE status IN ('blocked', 'deferred');
CREATE INDEX todos_monitor ON todos (goal_id, monitor_due_ms) WHERE task_class = 'monitor' AND status = 'open';
CREATE INDEX todos_successors ON todos (goal_id) WHERE status = 'done' AND continuation_kind = 'successor';
CREATE INDEX todos_claimed ON todos (goal_id, priority DESC, todo_id) WHERE status = 'claimed';
CREATE INDEX todos_page ON todos (goal_id, todo_id);

CREATE TABLE todo_deps (
  todo_id {text} NOT NULL REFERENCES todos (todo_id),
  depends_on {text} NOT NULL REFERENCES todos (todo_id),
  PRIMARY KEY (todo_id, depends_on)
){keyed};
CREATE INDEX todo_deps_reverse ON todo_deps (depends_on);

CREATE TABLE leases (
  resource {text} NOT NULL PRIMARY KEY,
  owner {text} NOT NULL,
  epoch {int} NOT NULL,
  expires_at_ms {int} NOT NULL
){keyed};

CREATE TABLE gates (
  gate_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  kind {text} NOT NULL,
  question {text} NOT NULL,
  options {json} NOT NULL,
  blocks_goal {bool} NOT NULL,
  todos {json} NOT NULL,
  dedupe_key {text} NOT NULL,
  status {text} NOT NULL CHECK (status = 'open' OR status = 'answered' OR status = 'expired'),
  answer {text},
  answered_by {text},
  fix {text} NOT NULL,
  turn_key {text},
  created_at_ms {int} NOT NULL,
  answered_at_ms {int},
  expires_at_ms {int}
){strict};
CREATE UNIQUE INDEX gates_dedupe ON gates (goal_id, dedupe_key) WHERE status = 'open';
CREATE INDEX gates_open ON gates (goal_id, blocks_goal DESC, gate_id) WHERE status = 'open';
CREATE INDEX gates_by_age ON gates (created_at_ms, gate_id) WHERE status = 'open';
CREATE INDEX gates_page ON gates (goal_id, gate_id);
CREATE INDEX gates_answered ON gates (goal_id, answered_at_ms DESC, gate_id DESC) WHERE status = 'answered';

CREATE TABLE grants (
  grant_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  scope {text} NOT NULL,
  answer {text} NOT NULL,
  granted_by {text} NOT NULL,
  created_at_ms {int} NOT NULL,
  expires_at_ms {int},
  revoked {bool} NOT NULL
){strict};
CREATE INDEX grants_by_goal ON grants (goal_id, scope);

CREATE TABLE turns (
  turn_key {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  agent_id {text} NOT NULL,
  todo_id {text},
  number {int} NOT NULL,
  goal_revision {int} NOT NULL,
  purpose {text} NOT NULL CHECK (purpose = 'work' OR purpose = 'repair' OR purpose = 'replan'),
  route {text} NOT NULL,
  state {text} NOT NULL CHECK (state = 'open' OR state = 'closed' OR state = 'blocked'),
  completed {int} NOT NULL CHECK (completed BETWEEN 0 AND 7),
  intended_kind {text},
  result_kind {text},
  failed_phase {text},
  closeout {text} NOT NULL CHECK (
    closeout = 'none' OR closeout = 'pending'
    OR closeout = 'failed' OR closeout = 'done'),
  epoch {int} NOT NULL,
  engine {text} NOT NULL,
  predecessor {text},
  discharged {bool} NOT NULL,
  slots {int} NOT NULL,
  outcome {text},
  delivery_kind {text},
  tree_before {text},
  tree_after {text},
  checkpoint {text},
  envelope {json} NOT NULL,
  decision {json} NOT NULL,
  result {json},
  violation {text},
  token_hash {text},
  choice {json},
  started_at_ms {int} NOT NULL,
  ended_at_ms {int}
){strict};
CREATE UNIQUE INDEX turns_one_open ON turns (goal_id, agent_id) WHERE state <> 'closed';
CREATE INDEX turns_page ON turns (goal_id, number DESC);
CREATE INDEX turns_by_todo ON turns (todo_id, number DESC);
CREATE INDEX turns_unacked ON turns (goal_id, number) WHERE state = 'closed' AND completed = 6;
CREATE UNIQUE INDEX turns_by_token ON turns (token_hash) WHERE state = 'open' AND token_hash IS NOT NULL;

CREATE TABLE turn_phases (
  turn_key {text} NOT NULL REFERENCES turns (turn_key),
  ordinal {int} NOT NULL,
  phase {text} NOT NULL,
  effect_ref {text} NOT NULL UNIQUE,
  receipt {json} NOT NULL,
  epoch {int} NOT NULL,
  committed_at_ms {int} NOT NULL,
  PRIMARY KEY (turn_key, ordinal)
){keyed};

CREATE TABLE ledger (
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  run_index {int} NOT NULL,
  kind {text} NOT NULL CHECK (kind IN ('spend', 'void')),
  effect_ref {text} NOT NULL UNIQUE,
  turn_key {text},
  slots {int} NOT NULL CHECK (slots > 0),
  cumulative {int} NOT NULL,
  at_ms {int} NOT NULL,
  voids {int},
  voided_at_ms {int},
  reason {text} NOT NULL,
  PRIMARY KEY (goal_id, run_index)
){keyed};
CREATE INDEX ledger_by_turn ON ledger (turn_key, run_index) WHERE turn_key IS NOT NULL;
CREATE INDEX ledger_window ON ledger (goal_id, at_ms, cumulative) WHERE kind = 'spend';
CREATE INDEX ledger_cumulative ON ledger (goal_id, cumulative, at_ms) WHERE kind = 'spend';
CREATE UNIQUE INDEX ledger_voids ON ledger (goal_id, voids) WHERE kind = 'void';
CREATE INDEX ledger_voided ON ledger (goal_id, voided_at_ms, slots) WHERE kind = 'void';

CREATE TABLE meters (
  goal_id {text} NOT NULL,
  unit {text} NOT NULL,
  seq {int} NOT NULL,
  effect_ref {text} NOT NULL,
  amount {int} NOT NULL CHECK (amount >= 0),
  cumulative {int} NOT NULL,
  at_ms {int} NOT NULL,
  PRIMARY KEY (goal_id, unit, seq)
){keyed};
CREATE UNIQUE INDEX meters_effect ON meters (effect_ref, unit, goal_id);
CREATE INDEX meters_window ON meters (goal_id, unit, at_ms, cumulative);

CREATE TABLE reservations (
  turn_key {text} NOT NULL REFERENCES turns (turn_key),
  goal_id {text} NOT NULL,
  unit {text} NOT NULL,
  amount {int} NOT NULL CHECK (amount >= 0),
  PRIMARY KEY (turn_key, unit)
){keyed};
CREATE INDEX reservations_by_goal ON reservations (goal_id, unit, amount);

CREATE TABLE schedules (
  goal_id {text} NOT NULL PRIMARY KEY REFERENCES goals (goal_id),
  state {text} NOT NULL,
  rrule {text},
  zone {text} NOT NULL,
  dtstart_local {text},
  owner {text} NOT NULL,
  revision {int} NOT NULL,
  applied_revision {int} NOT NULL,
  applied_rrule {text},
  acked_revision {int} NOT NULL,
  acked_rrule {text},
  next_due_ms {int},
  last_slot_key {text},
  misses {int} NOT NULL,
  failure {text} NOT NULL,
  updated_at_ms {int} NOT NULL
){keyed};

CREATE INDEX schedules_pending ON schedules (goal_id) WHERE (state = 'pending_apply' OR state = 'pending_ack' OR state = 'failed');

CREATE TABLE heartbeats (
  goal_id {text} NOT NULL,
  beat_key {text} NOT NULL,
  at_ms {int} NOT NULL,
  receipt {json} NOT NULL,
  PRIMARY KEY (goal_id, beat_key)
){keyed};

CREATE TABLE evidence (
  evidence_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  turn_key {text},
  todo_id {text},
  kind {text} NOT NULL CHECK (
    kind = 'check' OR kind = 'diff' OR kind = 'metric'
    OR kind = 'link' OR kind = 'note' OR kind = 'guard'),
  produced {text} NOT NULL CHECK (produced IN ('verified', 'claimed')),
  name {text} NOT NULL,
  verdict {text},
  tree_hash {text},
  commit_sha {text},
  body {json} NOT NULL,
  at_ms {int} NOT NULL
){strict};
CREATE INDEX evidence_page ON evidence (goal_id, evidence_id);
CREATE INDEX evidence_by_turn ON evidence (turn_key, evidence_id);

CREATE TABLE turn_claims (
  turn_key {text} NOT NULL REFERENCES turns (turn_key),
  seq {int} NOT NULL,
  kind {text} NOT NULL,
  body {json} NOT NULL,
  at_ms {int} NOT NULL,
  PRIMARY KEY (turn_key, seq)
){keyed};

CREATE TABLE check_cache (
  inputs {text} NOT NULL PRIMARY KEY,
  result {json} NOT NULL,
  at_ms {int} NOT NULL
){strict};

CREATE TABLE events (
  goal_id {text} NOT NULL,
  seq {int} NOT NULL,
  kind {text} NOT NULL,
  turn_key {text},
  at_ms {int} NOT NULL,
  body {json} NOT NULL,
  prev_hash {text} NOT NULL,
  hash {text} NOT NULL,
  PRIMARY KEY (goal_id, seq)
){keyed};
CREATE INDEX events_by_time ON events (at_ms, goal_id, seq);

CREATE TABLE host_runs (
  run_id {text} NOT NULL PRIMARY KEY,
  turn_key {text} NOT NULL REFERENCES turns (turn_key),
  goal_id {text} NOT NULL,
  engine {text} NOT NULL,
  attempt {int} NOT NULL,
  state {text} NOT NULL CHECK (state IN ('intended', 'ended')),
  spool_dir {text} NOT NULL,
  session_id {text},
  resumes {text},
  started_at_ms {int} NOT NULL,
  ended_at_ms {int},
  end_kind {text},
  handed_over {bool},
  input_tokens {int},
  cached_tokens {int},
  output_tokens {int},
  reasoning_tokens {int},
  cost_microusd {int},
  raw_usage {json},
  prompt_bytes {int} NOT NULL,
  overhead_bytes {int} NOT NULL,
  summary {json}
){strict};
CREATE INDEX host_runs_by_turn ON host_runs (turn_key, attempt);
CREATE INDEX host_runs_open ON host_runs (state, goal_id) WHERE state = 'intended';
CREATE INDEX host_runs_by_session ON host_runs (session_id, ended_at_ms) WHERE session_id IS NOT NULL;

CREATE TABLE capability_intents (
  intent_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL REFERENCES goals (goal_id),
  agent_id {text} NOT NULL,
  turn_key {text},
  capability {text} NOT NULL,
  command {json} NOT NULL,
  definition {json} NOT NULL,
  reason {text} NOT NULL,
  status {text} NOT NULL CHECK (
    status = 'requested' OR status = 'granted' OR status = 'refused'
    OR status = 'running' OR status = 'done' OR status = 'failed'),
  effect_ref {text} NOT NULL UNIQUE,
  attempt {int} NOT NULL,
  gate_id {text},
  receipt {json},
  created_at_ms {int} NOT NULL,
  updated_at_ms {int} NOT NULL
){strict};
CREATE INDEX capability_open ON capability_intents (goal_id, status, intent_id);
CREATE INDEX capability_page ON capability_intents (goal_id, intent_id);
CREATE INDEX capability_by_gate ON capability_intents (gate_id) WHERE gate_id IS NOT NULL;

CREATE TABLE outbox (
  outbox_id {text} NOT NULL PRIMARY KEY,
  goal_id {text} NOT NULL,
  effect_key {text} NOT NULL UNIQUE,
  kind {text} NOT NULL,
  payload {json} NOT NULL,
  status {text} NOT NULL CHECK (status = 'pending' OR status = 'sent' OR status = 'dead'),
  attempts {int} NOT NULL,
  next_at_ms {int} NOT NULL,
  last_error {text} NOT NULL,
  created_at_ms {int} NOT NULL,
  sent_at_ms {int}
){strict};
CREATE INDEX outbox_pending ON outbox (next_at_ms, outbox_id) WHERE status = 'pending';
CREATE INDEX outbox_by_goal ON outbox (goal_id, kind, sent_at_ms);
