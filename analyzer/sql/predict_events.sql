-- What ran on the device for step $step_id of run $run_id, in order?
-- Grain: one row per device event with sound times whose call started in the step. Times count from the
-- step's start; family is NULL for copies and memsets; mine: its call is one of the main thread.
SELECT
  device_events.call_id, device_events.kind, kernels.family,
  device_events.device,
  device_events.device || '/' || device_events.stream AS lane,
  device_events.start_ns - steps.start_ns AS start_ns, device_events.dur_ns,
  device_events.graph_index IS NOT NULL AS in_graph,
  calls.thread_id = steps.thread_id AS mine
FROM device_events
JOIN steps ON steps.run_id = $run_id AND steps.step_id = device_events.step_id
JOIN calls ON calls.run_id = $run_id AND calls.call_id = device_events.call_id
LEFT JOIN kernels ON kernels.run_id = $run_id AND kernels.kernel_id = device_events.kernel_id
WHERE device_events.run_id = $run_id AND device_events.step_id = $step_id AND NOT device_events.bad_time
ORDER BY device_events.start_ns, device_events.device_event_id
