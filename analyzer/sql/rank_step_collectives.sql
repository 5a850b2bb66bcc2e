-- When did the ranks of run $run_id begin and end the collectives of step $step_index of phase $phase?
-- Grain: one row per rank and collective that is a pair, first repetition, in order of time. Times are on the
-- first rank's clock, from the first start of the step on any rank.
WITH step AS (
  SELECT steps.run_id, steps.step_id, steps.trace_id, ranks.rank, steps.start_ns - ranks.clock_offset_ns AS start_ns
  FROM steps
  JOIN ranks USING (run_id, trace_id)
  WHERE run_id = $run_id AND phase = $phase AND step_index = $step_index AND ranks.repetition = 0
)
SELECT
  step.rank, collectives.collective_id, collectives.collective,
  collectives.aligned_start_ns - (SELECT min(start_ns) FROM step) AS start_ns,
  collectives.dur_ns, collectives.wait_ns, late.rank AS late_rank
FROM step
JOIN collectives USING (run_id, step_id)
JOIN ranks AS late ON late.run_id = step.run_id AND late.trace_id = collectives.late_trace_id
WHERE collectives.wait_ns IS NOT NULL
ORDER BY collectives.aligned_start_ns, step.rank
