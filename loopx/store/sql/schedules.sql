-- name: insert
INSERT INTO schedules (goal_id, state, rrule, zone, dtstart_local, owner, revision, applied_revision, acked_revision,
  misses, updated_at_ms)
VALUES (:goal_id, 'active', :rrule, :zone, :dtstart_local, :owner, 1, 0, 0, 0, :now_ms);

-- name: get
SELECT * FROM schedules WHERE goal_id = :goal_id;

-- name: set
UPDATE schedules SET rrule = :rrule, zone = :zone, dtstart_local = :dtstart_local, owner = :owner,
  revision = revision + 1, last_slot_key = NULL, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND revision = :revision;

-- name: apply
UPDATE schedules SET applied_revision = revision, applied_rrule = rrule, next_due_ms = :next_due_ms,
  last_slot_key = COALESCE(:last_slot_key, last_slot_key), misses = misses + :misses, updated_at_ms = :now_ms
WHERE goal_id = :goal_id;

-- name: ack
-- Only what was applied can be acknowledged.
UPDATE schedules SET acked_revision = applied_revision, acked_rrule = applied_rrule, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND applied_revision = :revision;

-- name: close
UPDATE schedules SET state = 'closed', next_due_ms = NULL, updated_at_ms = :now_ms WHERE goal_id = :goal_id;

-- name: reopen
UPDATE schedules SET state = 'active', updated_at_ms = :now_ms WHERE goal_id = :goal_id;

-- name: insert_beat
INSERT INTO heartbeats (goal_id, beat_key, at_ms, receipt) VALUES (:goal_id, :beat_key, :now_ms, :receipt)
ON CONFLICT (goal_id, beat_key) DO NOTHING;

-- name: get_beat
SELECT * FROM heartbeats WHERE goal_id = :goal_id AND beat_key = :beat_key;
