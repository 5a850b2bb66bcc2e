-- How much of run $run_id is linked and attributed?
-- Grain: one row. Shares follow from the counts.
SELECT device.*, launch.*, op.*, call.*, device_stream.*, kernel.*
FROM (
  SELECT
    count(*) AS device_events,
    count(call_id) AS with_launch,
    count(*) FILTER (op_id IS NOT NULL OR captured_op_name_id IS NOT NULL) AS with_op,
    count(captured_op_name_id) AS op_from_capture,
    count(step_id) AS in_step
  FROM device_events
  WHERE run_id = $run_id
) AS device,
(
  SELECT count(*) AS launches, count(*) FILTER (is_clean) AS clean_launches
  FROM launches
  WHERE run_id = $run_id
) AS launch,
(
  SELECT
    count(*) FILTER (NOT is_region) AS ops,
    count(*) FILTER (is_region) AS regions,
    count(shape_id) AS ops_with_shapes
  FROM ops
  WHERE run_id = $run_id
) AS op,
(SELECT count(*) AS calls FROM calls WHERE run_id = $run_id) AS call,
(
  SELECT count(DISTINCT (device, stream)) AS streams FROM device_events WHERE run_id = $run_id
) AS device_stream,
(
  SELECT count(*) AS kernel_identities, count(DISTINCT name_id) AS distinct_kernels
  FROM kernels
  WHERE run_id = $run_id
) AS kernel
