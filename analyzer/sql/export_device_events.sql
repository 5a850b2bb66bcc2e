-- Which device events does trace $trace_id of run $run_id hold, in time order, who started each?
-- Grain: one row per kernel, copy or memset; the call's columns are NULL for an orphan.
-- op_name_id: innermost op of the launch call, for a graph replay the one that its capture lends.
SELECT
  device_events.kind, device_events.name_id, device_events.device, device_events.stream,
  device_events.start_ns, device_events.dur_ns, device_events.correlation_id,
  device_events.external_id, device_events.bytes, device_events.step_id, device_events.graph_index,
  device_events.device_event_id, device_events.kernel_id,
  coalesce(device_events.captured_op_name_id, ops.name_id) AS op_name_id,
  device_events.captured_op_name_id IS NOT NULL AS op_from_capture,
  kernels.family, kernels.grid, kernels.block, kernels.shared_memory, kernels.registers,
  calls.call_id, calls.name_id AS call_name_id, calls.thread_id AS call_thread_id,
  calls.start_ns AS call_start_ns, device_events.bad_time,
  collectives.collective, collectives.process_group, collectives.bytes AS message_bytes
FROM device_events
LEFT JOIN ops ON ops.run_id = device_events.run_id AND ops.op_id = device_events.op_id
LEFT JOIN kernels
  ON kernels.run_id = device_events.run_id AND kernels.kernel_id = device_events.kernel_id
LEFT JOIN calls ON calls.run_id = device_events.run_id AND calls.call_id = device_events.call_id
LEFT JOIN collectives
  ON collectives.run_id = device_events.run_id
  AND collectives.device_event_id = device_events.device_event_id
WHERE device_events.run_id = $run_id AND device_events.trace_id = $trace_id
ORDER BY device_events.start_ns, device_events.device_event_id
