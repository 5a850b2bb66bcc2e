-- Where in run $run_id is the launch of each operator that cost the host most?
-- Grain: one row per innermost op name; '(none)' for launches outside ops, which have no op_id.
WITH costs AS (
  SELECT
    coalesce(op_name.name, '(none)') AS op, launches.trace_id, calls.op_id, launches.call_id,
    coalesce(launches.dft_ns, 0) + coalesce(launches.dct_ns, 0) + coalesce(launches.dkt_ns, 0) AS host_ns
  FROM launches
  JOIN calls ON calls.run_id = launches.run_id AND calls.call_id = launches.call_id
  LEFT JOIN ops ON ops.run_id = launches.run_id AND ops.op_id = calls.op_id
  LEFT JOIN names AS op_name ON op_name.run_id = ops.run_id AND op_name.name_id = ops.name_id
  WHERE launches.run_id = $run_id
)
SELECT op, trace_id, op_id, call_id
FROM costs
QUALIFY row_number() OVER (PARTITION BY op ORDER BY host_ns DESC, call_id) = 1
ORDER BY op
