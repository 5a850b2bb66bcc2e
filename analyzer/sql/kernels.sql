-- Which kernels does run $run_id run, under which op, how often and how long?
-- Grain: one row per kernel identity, longest in sum first. With $step_ids only events of those steps
-- (NULL: all). launch_ns: median T_launch of clean launches.
WITH events AS (
  SELECT
    kernel_id, count(*) AS kernels, sum(dur_ns)::BIGINT AS device_ns,
    min(dur_ns) AS min_ns, quantile_disc(dur_ns, 0.5) AS p50_ns, max(dur_ns) AS max_ns
  FROM device_events
  WHERE run_id = $run_id AND kernel_id IS NOT NULL AND NOT bad_time
    AND ($step_ids IS NULL OR list_contains($step_ids, step_id))
  GROUP BY kernel_id
),
launched AS (
  SELECT
    kernel_id, count(*) AS launches,
    quantile_disc(t_launch_ns, 0.5) FILTER (is_clean) AS launch_ns,
    sum(coalesce(dft_ns, 0) + coalesce(dct_ns, 0) + coalesce(dkt_ns, 0))::BIGINT AS host_ns,
    any_value(match_tier) AS match_tier
  FROM launches
  WHERE run_id = $run_id AND kernel_id IS NOT NULL
    AND ($step_ids IS NULL OR list_contains($step_ids, step_id))
  GROUP BY kernel_id
)
SELECT
  events.kernel_id, names.name AS kernel, kernels.clean_name, kernels.family, op_name.name AS op,
  shapes.input_dims, shapes.input_types, shapes.input_strides,
  kernels.grid, kernels.block, kernels.shared_memory, kernels.registers,
  kernels.is_library_evidence AS is_library,
  events.kernels, events.device_ns, events.min_ns, events.p50_ns, events.max_ns,
  launched.launches, launched.launch_ns, launched.host_ns, launched.match_tier,
  matches.same_configuration, matches.reason AS match_reason
FROM events
JOIN kernels ON kernels.run_id = $run_id AND kernels.kernel_id = events.kernel_id
JOIN names ON names.run_id = $run_id AND names.name_id = kernels.name_id
LEFT JOIN names AS op_name ON op_name.run_id = $run_id AND op_name.name_id = kernels.op_name_id
LEFT JOIN shapes ON shapes.run_id = $run_id AND shapes.shape_id = kernels.shape_id
LEFT JOIN launched ON launched.kernel_id = events.kernel_id
LEFT JOIN matches ON matches.run_id = $run_id AND matches.kernel_id = events.kernel_id
ORDER BY events.device_ns DESC, events.kernel_id
LIMIT $row_limit
