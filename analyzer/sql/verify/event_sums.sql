-- Do counts and times of device events and calls equal the totals of each step and of each trace?
-- Grain: one row per trace, step and figure that differ. Events with a bad time count, without time.
-- Device times are unknown in a trace without device events, those of kernels where it does not tell them.
WITH device_scoped AS (
  SELECT run_id, trace_id, step_id, kind, device, call_id IS NULL AS is_orphan, bad_time, start_ns,
    CASE WHEN bad_time THEN 0 ELSE dur_ns END AS ns
  FROM device_events
  UNION ALL
  SELECT run_id, trace_id, NULL, kind, device, call_id IS NULL, bad_time, start_ns,
    CASE WHEN bad_time THEN 0 ELSE dur_ns END
  FROM device_events WHERE step_id IS NOT NULL
),
device_sums AS (
  SELECT
    run_id, trace_id, step_id,
    -- Graph replays that were recorded as one block hide their kernels.
    bool_or(kind = 'graph') AS is_opaque,
    CASE WHEN NOT bool_or(kind = 'graph') THEN count(*) FILTER (kind = 'kernel') END AS kernels,
    count(*) FILTER (kind = 'memcpy') AS memcpys,
    count(*) FILTER (kind = 'memset') AS memsets,
    count(*) FILTER (is_orphan) AS orphan_device_events,
    count(*) FILTER (bad_time) AS bad_times,
    CASE WHEN NOT bool_or(kind = 'graph')
      THEN coalesce(sum(ns) FILTER (kind = 'kernel'), 0) END AS device_active_ns,
    coalesce(sum(ns) FILTER (is_orphan), 0) AS orphan_device_ns,
    sum(ns) AS device_event_sum_ns
  FROM device_scoped
  GROUP BY ALL
),
-- What each event adds to the union of the earlier ones of its device.
device_new AS (
  SELECT
    run_id, trace_id, step_id,
    greatest(0, start_ns + ns - greatest(start_ns, coalesce(max(start_ns + ns) OVER (
      PARTITION BY run_id, trace_id, step_id, device ORDER BY start_ns, ns
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), start_ns))) AS ns
  FROM device_scoped
  WHERE NOT bad_time
),
device_end AS (
  SELECT run_id, trace_id, step_id, max(start_ns + ns) AS end_ns
  FROM device_scoped
  WHERE NOT bad_time
  GROUP BY ALL
),
device_busy AS (
  SELECT run_id, trace_id, step_id, sum(ns) AS device_busy_ns FROM device_new GROUP BY ALL
),
host_scoped AS (
  SELECT run_id, trace_id, step_id, bad_time,
    account IN ('launch', 'graph_launch') AND is_launch AND device_events = 0 AND NOT in_capture
      AS is_silent
  FROM calls
  UNION ALL
  SELECT run_id, trace_id, step_id, bad_time, false FROM ops
),
host_sums AS (
  SELECT run_id, trace_id, step_id, count(*) FILTER (bad_time) AS bad_times,
    count(*) FILTER (is_silent) AS launches_without_device_event
  FROM (
    SELECT * FROM host_scoped
    UNION ALL
    SELECT * REPLACE (NULL AS step_id) FROM host_scoped WHERE step_id IS NOT NULL
  )
  GROUP BY ALL
),
seen AS (
  SELECT run_id, trace_id, count(*) AS device_events,
    -- MTIA does not tell which of its events are kernels.
    bool_or(kind = 'kernel') OR NOT bool_or(kind = 'mtia') AS tells_kernels
  FROM device_events
  GROUP BY ALL
),
outside AS (
  SELECT run_id, trace_id, coalesce(sum(ns) FILTER (kind = 'kernel'), 0) AS active_ns, sum(ns) AS ns
  FROM (
    SELECT run_id, trace_id, kind, CASE WHEN bad_time THEN 0 ELSE dur_ns END AS ns
    FROM device_events WHERE step_id IS NULL
  )
  GROUP BY ALL
),
figures AS (
  SELECT totals.run_id, totals.trace_id, totals.step_id, unnest([
    {'name': 'kernels', 'kept': totals.kernels,
      'found': CASE WHEN device_sums.run_id IS NULL THEN 0 ELSE device_sums.kernels END},
    {'name': 'memcpys', 'kept': totals.memcpys, 'found': coalesce(device_sums.memcpys, 0)},
    {'name': 'memsets', 'kept': totals.memsets, 'found': coalesce(device_sums.memsets, 0)},
    {'name': 'orphan_device_events', 'kept': totals.orphan_device_events,
      'found': coalesce(device_sums.orphan_device_events, 0)},
    {'name': 'device_active_ns', 'kept': totals.device_active_ns,
      'found': CASE WHEN seen.tells_kernels AND device_sums.is_opaque IS NOT TRUE
        THEN coalesce(device_sums.device_active_ns, 0) END},
    {'name': 'active_outside_steps_ns', 'kept': totals.active_outside_steps_ns,
      'found': CASE WHEN totals.step_id IS NULL AND seen.tells_kernels
        AND device_sums.is_opaque IS NOT TRUE THEN coalesce(outside.active_ns, 0) END},
    {'name': 'event_sum_outside_steps_ns', 'kept': totals.event_sum_outside_steps_ns,
      'found': CASE WHEN totals.step_id IS NULL AND seen.device_events > 0
        THEN coalesce(outside.ns, 0) END},
    {'name': 'orphan_device_ns', 'kept': totals.orphan_device_ns,
      'found': coalesce(device_sums.orphan_device_ns, 0)},
    {'name': 'device_event_sum_ns', 'kept': totals.device_event_sum_ns,
      'found': CASE WHEN seen.device_events > 0
        THEN coalesce(device_sums.device_event_sum_ns, 0) END},
    {'name': 'device_busy_ns', 'kept': totals.device_busy_ns,
      'found': CASE WHEN seen.device_events > 0 THEN coalesce(device_busy.device_busy_ns, 0) END},
    {'name': 'launches_without_device_event', 'kept': totals.launches_without_device_event,
      'found': coalesce(host_sums.launches_without_device_event, 0)},
    {'name': 'bad_time_events', 'kept': totals.bad_time_events,
      'found': coalesce(device_sums.bad_times, 0) + coalesce(host_sums.bad_times, 0)},
    {'name': 'device idle and busy time', 'kept': totals.busy_in_window_ns + totals.device_idle_ns,
      'found': CASE WHEN seen.device_events > 0 THEN totals.wall_ns END},
    {'name': 'elapsed_ns', 'kept': steps.elapsed_ns,
      'found': greatest(steps.end_ns, coalesce(device_end.end_ns, steps.end_ns)) - steps.start_ns}
  ]) AS figure
  FROM totals
  LEFT JOIN seen ON seen.run_id = totals.run_id AND seen.trace_id = totals.trace_id
  LEFT JOIN outside ON outside.run_id = totals.run_id AND outside.trace_id = totals.trace_id
  LEFT JOIN device_sums
    ON device_sums.run_id = totals.run_id AND device_sums.trace_id = totals.trace_id
    AND device_sums.step_id IS NOT DISTINCT FROM totals.step_id
  LEFT JOIN device_busy
    ON device_busy.run_id = totals.run_id AND device_busy.trace_id = totals.trace_id
    AND device_busy.step_id IS NOT DISTINCT FROM totals.step_id
  LEFT JOIN device_end
    ON device_end.run_id = totals.run_id AND device_end.trace_id = totals.trace_id
    AND device_end.step_id IS NOT DISTINCT FROM totals.step_id
  LEFT JOIN steps ON steps.run_id = totals.run_id AND steps.step_id = totals.step_id
  LEFT JOIN host_sums
    ON host_sums.run_id = totals.run_id AND host_sums.trace_id = totals.trace_id
    AND host_sums.step_id IS NOT DISTINCT FROM totals.step_id
  WHERE totals.trace_id IS NOT NULL
)
SELECT
  run_id,
  'step ' || coalesce(step_id::VARCHAR, '(whole trace)') || ' of trace ' || trace_id || ': '
  || figure.name || ' is ' || coalesce(figure.kept::VARCHAR, 'unknown') || ' in the totals, '
  || coalesce(figure.found::VARCHAR, 'unknown') || ' by its events' AS message
FROM figures
WHERE figure.kept IS DISTINCT FROM figure.found
ORDER BY ALL
