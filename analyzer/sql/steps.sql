-- What did each step of run $run_id cost?
-- Grain: one row per step, in order of time. elapsed_ns: from the step's start to the later of its end on
-- the host and the end of its last device event; device_tail_ns is the part after the host's end.
SELECT
  steps.step_id, steps.trace_id, steps.name, steps.phase, steps.step_index AS index, steps.thread_id,
  steps.start_ns, steps.end_ns,
  steps.elapsed_ns, steps.elapsed_ns - (steps.end_ns - steps.start_ns) AS device_tail_ns,
  steps.engine, steps.batch, steps.ctx_tokens, steps.gen_tokens, steps.is_warm_up,
  totals.* EXCLUDE (run_id, trace_id, step_id)
FROM steps
JOIN totals ON totals.run_id = steps.run_id AND totals.step_id = steps.step_id
WHERE steps.run_id = $run_id
ORDER BY steps.trace_id, steps.start_ns, steps.step_id
