-- Which operators of run $run_id cost the host most to get their kernels launched?
-- Grain: one row per innermost op name; '(none)' for launches outside ops. With $step_ids only those steps.
-- host_ns = dFT + dCT + dKT as far as known; device_ns: their kernels.
SELECT
  coalesce(op_name.name, '(none)') AS op,
  count(*) AS launches,
  sum(launches.kernels)::BIGINT AS kernels,
  sum(launches.t_py_ns)::BIGINT AS t_py_ns,
  sum(launches.t_dispatch_ns)::BIGINT AS t_dispatch_ns,
  sum(launches.dft_ns)::BIGINT AS ft_ns,
  sum(launches.dct_ns)::BIGINT AS ct_ns,
  sum(launches.dkt_ns)::BIGINT AS kt_ns,
  sum(coalesce(launches.dft_ns, 0) + coalesce(launches.dct_ns, 0) + coalesce(launches.dkt_ns, 0))::BIGINT
    AS host_ns,
  sum(launches.t_exec_ns)::BIGINT AS device_ns
FROM launches
JOIN calls ON calls.run_id = launches.run_id AND calls.call_id = launches.call_id
LEFT JOIN ops ON ops.run_id = launches.run_id AND ops.op_id = calls.op_id
LEFT JOIN names AS op_name ON op_name.run_id = ops.run_id AND op_name.name_id = ops.name_id
WHERE launches.run_id = $run_id
  AND ($step_ids IS NULL OR list_contains($step_ids, launches.step_id))
GROUP BY ALL
ORDER BY host_ns DESC, op
LIMIT $row_limit
