-- Which API calls does trace $trace_id of run $run_id hold, and what did each launch cost?
-- Grain: one row per call; the columns from t_py_ns on are NULL unless it launched a kernel or a graph.
-- op_name_id: innermost op around the call; started: ids of the device events that it owns.
WITH
owned AS (
  SELECT call_id, list(device_event_id ORDER BY device_event_id) AS started
  FROM device_events
  WHERE run_id = $run_id AND trace_id = $trace_id
  GROUP BY call_id
)
SELECT
  calls.thread_id, calls.name_id, calls.start_ns, calls.dur_ns, calls.correlation_id,
  calls.external_id, calls.account, calls.in_capture, calls.step_id, calls.call_id,
  ops.name_id AS op_name_id, launches.t_py_ns, launches.t_dispatch_ns, launches.t_launch_ns,
  launches.dft_ns, launches.dct_ns, launches.dkt_ns, launches.dkt_fw_ns, launches.match_tier,
  launches.is_clean, launches.is_library, launches.kernels, owned.started
FROM calls
LEFT JOIN ops ON ops.run_id = calls.run_id AND ops.op_id = calls.op_id
LEFT JOIN owned ON owned.call_id = calls.call_id
LEFT JOIN launches ON launches.run_id = calls.run_id AND launches.call_id = calls.call_id
WHERE calls.run_id = $run_id AND calls.trace_id = $trace_id
ORDER BY calls.call_id
