-- name: get
SELECT * FROM leases WHERE resource = :resource;

-- name: acquire
-- Take a lease that is free: a new epoch each time, so that the last holder can write nothing any more. A live lease
-- is taken over only when the caller proved its owner dead (`dead_owner`).
INSERT INTO leases (resource, owner, epoch, expires_at_ms) VALUES (:resource, :owner, 1, :expires_at_ms)
ON CONFLICT (resource) DO UPDATE SET owner = excluded.owner, epoch = leases.epoch + 1,
  expires_at_ms = excluded.expires_at_ms
WHERE leases.expires_at_ms <= :now_ms OR leases.owner = :dead_owner
RETURNING epoch;

-- name: renew
UPDATE leases SET expires_at_ms = :expires_at_ms
WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms;

-- name: release
-- The row stays, because the epoch must only grow.
UPDATE leases SET expires_at_ms = 0 WHERE resource = :resource AND epoch = :epoch;

-- name: end
-- The claim on a todo ends with the turn that worked on it, unless another agent has it by now.
UPDATE leases SET expires_at_ms = 0 WHERE resource = :resource AND owner = :owner;

-- name: live
SELECT * FROM leases WHERE expires_at_ms > :now_ms ORDER BY resource LIMIT :limit;

-- name: jump
-- After a restore: nobody from before holds anything, and no fence of theirs is ever reached again.
UPDATE leases SET epoch = epoch + :jump, expires_at_ms = 0;
