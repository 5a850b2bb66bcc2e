-- Which ops and regions does trace $trace_id of run $run_id hold, in the order of the file?
-- Grain: one row per op or region. Times in ns on the trace's clock.
SELECT
  ops.thread_id, ops.name_id, ops.start_ns, ops.dur_ns, ops.external_id, ops.shape_id, ops.is_region,
  ops.step_id, ops.op_id
FROM ops
WHERE ops.run_id = $run_id AND ops.trace_id = $trace_id
ORDER BY ops.op_id
