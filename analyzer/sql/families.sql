-- Which kinds of work does run $run_id do on the device, and what does launching each cost?
-- Grain: one row per kernel family; copies and memsets are families of their own.
-- launch_ns: median T_launch of clean launches (stream seen idle); above_floor_ns: median of the replayed
-- launch cost, or without replay of the clean one, less the launch floor.
WITH events AS (
  SELECT
    coalesce(kernels.family, device_events.kind) AS family,
    device_events.dur_ns, device_events.bad_time, device_events.kernel_id
  FROM device_events
  LEFT JOIN kernels ON kernels.run_id = device_events.run_id AND kernels.kernel_id = device_events.kernel_id
  WHERE device_events.run_id = $run_id
),
launched AS (
  SELECT
    kernels.family,
    count(*) AS launches,
    count(*) FILTER (launches.is_clean) AS clean_launches,
    quantile_disc(launches.t_launch_ns, 0.5) FILTER (launches.is_clean) AS launch_ns,
    coalesce(
      quantile_disc(launches.replay_launch_ns - launches.dkt_ns, 0.5),
      quantile_disc(launches.t_launch_ns - launches.dkt_ns, 0.5) FILTER (launches.is_clean)
    ) AS above_floor_ns,
    sum(launches.dft_ns)::BIGINT AS ft_ns,
    sum(launches.dct_ns)::BIGINT AS ct_ns
  FROM launches
  JOIN kernels ON kernels.run_id = launches.run_id AND kernels.kernel_id = launches.kernel_id
  WHERE launches.run_id = $run_id AND NOT launches.is_graph
  GROUP BY kernels.family
)
SELECT
  events.family,
  count(*) AS events,
  count(DISTINCT events.kernel_id) AS distinct_kernels,
  coalesce(sum(events.dur_ns) FILTER (NOT events.bad_time), 0)::BIGINT AS device_ns,
  any_value(launched.launches) AS launches,
  any_value(launched.clean_launches) AS clean_launches,
  any_value(launched.launch_ns) AS launch_ns,
  any_value(launched.above_floor_ns) AS above_floor_ns,
  any_value(launched.ft_ns) AS ft_ns,
  any_value(launched.ct_ns) AS ct_ns
FROM events
LEFT JOIN launched USING (family)
GROUP BY events.family
ORDER BY device_ns DESC, events.family
