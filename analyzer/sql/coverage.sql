-- How much of run $run_id is linked and attributed?
-- Grain: one row. Shares follow from the counts.
SELECT
  (SELECT count(*) FROM device_events WHERE run_id = $run_id) AS device_events,
  (SELECT count(*) FROM device_events WHERE run_id = $run_id AND call_id IS NOT NULL) AS with_launch,
  (SELECT count(*) FROM device_events
   WHERE run_id = $run_id AND (op_id IS NOT NULL OR captured_op_name_id IS NOT NULL)) AS with_op,
  (SELECT count(*) FROM device_events
   WHERE run_id = $run_id AND captured_op_name_id IS NOT NULL) AS op_from_capture,
  (SELECT count(*) FROM device_events WHERE run_id = $run_id AND step_id IS NOT NULL) AS in_step,
  (SELECT count(*) FROM launches WHERE run_id = $run_id) AS launches,
  (SELECT count(*) FROM launches WHERE run_id = $run_id AND is_clean) AS clean_launches,
  (SELECT count(*) FROM ops WHERE run_id = $run_id AND NOT is_region) AS ops,
  (SELECT count(*) FROM ops WHERE run_id = $run_id AND is_region) AS regions,
  (SELECT count(*) FROM ops WHERE run_id = $run_id AND shape_id IS NOT NULL) AS ops_with_shapes,
  (SELECT count(*) FROM calls WHERE run_id = $run_id) AS calls,
  (SELECT count(DISTINCT (device, stream)) FROM device_events WHERE run_id = $run_id) AS streams,
  (SELECT count(*) FROM kernels WHERE run_id = $run_id) AS kernel_identities,
  (SELECT count(DISTINCT name_id) FROM kernels WHERE run_id = $run_id) AS distinct_kernels
