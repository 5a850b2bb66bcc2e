-- What is device event $id of run $run_id, which call started it, under which op?
-- Grain: one row. T_launch and the decomposition are its launch's; of a graph launch they are the first kernel's.
SELECT
  device_events.device_event_id, device_events.kind, kernel_name.name AS kernel, kernels.clean_name,
  kernels.family, kernels.grid, kernels.block, kernels.shared_memory, kernels.registers,
  device_events.device, device_events.stream, device_events.start_ns, device_events.dur_ns,
  device_events.bytes, device_events.correlation_id, device_events.graph_index, device_events.kernel_id,
  calls.call_id, call_name.name AS call, calls.start_ns AS call_start_ns, calls.dur_ns AS call_dur_ns,
  coalesce(captured_name.name, op_name.name) AS op,
  device_events.captured_op_name_id IS NOT NULL AS op_from_capture,
  shapes.input_dims, shapes.input_types,
  launches.t_py_ns, launches.t_dispatch_ns, launches.t_launch_ns, launches.is_clean,
  launches.dft_ns, launches.dct_ns, launches.dkt_ns, launches.match_tier, matches.reason AS match_reason
FROM device_events
LEFT JOIN names AS kernel_name
  ON kernel_name.run_id = $run_id AND kernel_name.name_id = device_events.name_id
LEFT JOIN kernels ON kernels.run_id = $run_id AND kernels.kernel_id = device_events.kernel_id
LEFT JOIN shapes ON shapes.run_id = $run_id AND shapes.shape_id = kernels.shape_id
LEFT JOIN matches ON matches.run_id = $run_id AND matches.kernel_id = device_events.kernel_id
LEFT JOIN calls ON calls.run_id = $run_id AND calls.call_id = device_events.call_id
LEFT JOIN names AS call_name ON call_name.run_id = $run_id AND call_name.name_id = calls.name_id
LEFT JOIN launches ON launches.run_id = $run_id AND launches.call_id = device_events.call_id
LEFT JOIN ops ON ops.run_id = $run_id AND ops.op_id = device_events.op_id
LEFT JOIN names AS op_name ON op_name.run_id = $run_id AND op_name.name_id = ops.name_id
LEFT JOIN names AS captured_name
  ON captured_name.run_id = $run_id AND captured_name.name_id = device_events.captured_op_name_id
WHERE device_events.run_id = $run_id AND device_events.device_event_id = $id
