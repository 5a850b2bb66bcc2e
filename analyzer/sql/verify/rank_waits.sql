-- Do the charges of a rank's waits add up to how long it waited, and is a wait a part of its collective?
-- Grain: one row per rank and step where they do not; one per collective where it is not.
WITH sums AS (
  SELECT run_id, trace_id, step_id, sum(waited) AS waited, sum(charged) AS charged
  FROM (
    SELECT run_id, trace_id, step_id, wait_ns AS waited, 0 AS charged FROM collectives
    UNION ALL
    SELECT run_id, trace_id, step_id, 0, ns FROM waits
  )
  GROUP BY ALL
)
SELECT
  run_id,
  'trace ' || trace_id || ' waited ' || waited || ' ns in step ' || coalesce(step_id::VARCHAR, '(none)')
  || ', but ' || charged || ' ns are charged for it' AS message
FROM sums
WHERE waited <> charged
UNION ALL
SELECT
  run_id,
  'device event ' || device_event_id || ' waited ' || wait_ns || ' and transferred ' || transfer_ns
  || ' of its ' || dur_ns || ' ns'
FROM collectives
WHERE wait_ns < 0 OR wait_ns + transfer_ns <> dur_ns
ORDER BY ALL
