-- name: insert
INSERT INTO schedules (goal_id, state, rrule, zone, dtstart_local, owner, revision, applied_revision, applied_rrule,
  acked_revision, acked_rrule, next_due_ms, last_slot_key, misses, failure, updated_at_ms)
VALUES (:goal_id, :state, :rrule, :zone, :dtstart_local, :owner, :revision, :applied_revision, :applied_rrule,
  :acked_revision, :acked_rrule, :next_due_ms, :last_slot_key, :misses, :failure, :now_ms);

-- name: get
SELECT * FROM schedules WHERE goal_id = :goal_id;

-- name: save
-- The whole row, if the cadence is still at the revision that was read.
UPDATE schedules SET state = :state, rrule = :rrule, zone = :zone, dtstart_local = :dtstart_local, owner = :owner,
  revision = :revision, applied_revision = :applied_revision, applied_rrule = :applied_rrule,
  acked_revision = :acked_revision, acked_rrule = :acked_rrule, next_due_ms = :next_due_ms,
  last_slot_key = :last_slot_key, misses = :misses, failure = :failure, updated_at_ms = :now_ms
WHERE goal_id = :goal_id AND revision = :expected;

-- name: pending_acks
-- Goals whose owner is not known to have the wanted cadence.
SELECT goal_id FROM schedules WHERE (state = 'pending_apply' OR state = 'pending_ack' OR state = 'failed') ORDER BY goal_id LIMIT :limit;

-- name: insert_beat
INSERT INTO heartbeats (goal_id, beat_key, at_ms, receipt) VALUES (:goal_id, :beat_key, :now_ms, :receipt)
ON CONFLICT (goal_id, beat_key) DO NOTHING;

-- name: get_beat
SELECT * FROM heartbeats WHERE goal_id = :goal_id AND beat_key = :beat_key;
