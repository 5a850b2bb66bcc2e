-- What happened in trace $trace_id of run $run_id between $start_ns and $end_ns, of at least $least_ns?
-- Grain: one row per op, region, call or device event that overlaps the window, in order of start.
SELECT 'op' AS kind, ops.op_id AS id, names.name, ops.start_ns, ops.dur_ns, ops.thread_id, NULL AS stream, NULL AS call_id
FROM ops JOIN names ON names.run_id = ops.run_id AND names.name_id = ops.name_id
WHERE ops.run_id = $run_id AND ops.trace_id = $trace_id AND ops.dur_ns >= $least_ns
  AND ops.start_ns < $end_ns AND ops.start_ns + ops.dur_ns > $start_ns
UNION ALL
SELECT 'call', calls.call_id, names.name, calls.start_ns, calls.dur_ns, calls.thread_id, NULL, NULL
FROM calls JOIN names ON names.run_id = calls.run_id AND names.name_id = calls.name_id
WHERE calls.run_id = $run_id AND calls.trace_id = $trace_id AND calls.dur_ns >= $least_ns
  AND calls.start_ns < $end_ns AND calls.start_ns + calls.dur_ns > $start_ns
UNION ALL
SELECT
  device_events.kind, device_event_id, coalesce(kernels.clean_name, names.name), device_events.start_ns,
  device_events.dur_ns, NULL, device_events.device || '/' || device_events.stream, device_events.call_id
FROM device_events
JOIN names ON names.run_id = device_events.run_id AND names.name_id = device_events.name_id
LEFT JOIN kernels
  ON kernels.run_id = device_events.run_id AND kernels.kernel_id = device_events.kernel_id
WHERE device_events.run_id = $run_id AND device_events.trace_id = $trace_id
  AND device_events.dur_ns >= $least_ns
  AND device_events.start_ns < $end_ns AND device_events.start_ns + device_events.dur_ns > $start_ns
ORDER BY 4, 5 DESC, 1, 2
LIMIT $row_limit OFFSET $first_row
