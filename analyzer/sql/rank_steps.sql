-- What did each rank of run $run_id wait and transfer in each of its steps?
-- Grain: one row per step with collectives, in order of time. unrecorded_ns: the part of wait_ns in which
-- nothing of the late rank was recorded (its profiler had not begun); it says nothing about the step.
SELECT
  ranks.rank, ranks.repetition, steps.step_id, steps.phase, steps.step_index, steps.is_warm_up,
  steps.start_ns - ranks.clock_offset_ns AS aligned_start_ns, steps.elapsed_ns,
  own.collectives, own.wait_ns, own.transfer_ns, coalesce(lost.ns, 0)::BIGINT AS unrecorded_ns
FROM (
  SELECT
    trace_id, step_id, count(*) AS collectives, sum(wait_ns)::BIGINT AS wait_ns,
    sum(transfer_ns)::BIGINT AS transfer_ns
  FROM collectives
  WHERE run_id = $run_id AND step_id IS NOT NULL
  GROUP BY trace_id, step_id
) AS own
JOIN ranks ON ranks.run_id = $run_id AND ranks.trace_id = own.trace_id
JOIN steps ON steps.run_id = $run_id AND steps.step_id = own.step_id
LEFT JOIN (
  SELECT step_id, sum(ns) AS ns
  FROM waits
  WHERE run_id = $run_id AND account = 'not_recorded'
  GROUP BY step_id
) AS lost ON lost.step_id = own.step_id
ORDER BY ranks.rank, ranks.repetition, steps.start_ns, steps.step_id
