-- Which kernels did each step of run $run_id launch, in which order?
-- Grain: one row per step. sequence: a digest of names and launch configurations in order of their
-- launch calls; equal in two runs if the steps launched the same kernels in the same order. NULL
-- without kernels.
WITH identity AS (
  SELECT
    kernels.kernel_id,
    md5(concat(
      names.name, '|', coalesce(kernels.grid, ''), '|', coalesce(kernels.block, ''), '|',
      coalesce(kernels.shared_memory::VARCHAR, '')
    )) AS digest
  FROM kernels
  JOIN names ON names.run_id = kernels.run_id AND names.name_id = kernels.name_id
  WHERE kernels.run_id = $run_id
),
launched AS (
  SELECT
    device_events.step_id, identity.digest,
    coalesce(calls.start_ns, device_events.start_ns) AS launched_ns,
    device_events.graph_index, device_events.start_ns, device_events.device_event_id
  FROM device_events
  JOIN identity ON identity.kernel_id = device_events.kernel_id
  LEFT JOIN calls ON calls.run_id = device_events.run_id AND calls.call_id = device_events.call_id
  WHERE device_events.run_id = $run_id
)
SELECT
  any_value(steps.phase) AS phase, any_value(steps.step_index) AS step_index,
  count(launched.digest) AS kernels,
  md5(string_agg(
    launched.digest, '' ORDER BY launched_ns, graph_index, launched.start_ns, device_event_id
  )) AS sequence
FROM steps
LEFT JOIN launched ON launched.step_id = steps.step_id
WHERE steps.run_id = $run_id
GROUP BY steps.trace_id, steps.step_id
ORDER BY steps.trace_id, steps.step_id
