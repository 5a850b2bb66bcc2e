-- Do the totals of a run's traces add up to the run's, and is HDBI device / (device + host)?
-- Grain: one row per run and figure that differ. A sum with an unknown part is unknown.
WITH sums AS (
  SELECT
    run_id,
    CASE WHEN count(kernels) = count(*) THEN sum(kernels) END AS kernels,
    sum(memcpys) AS memcpys, sum(memsets) AS memsets,
    sum(launches) AS launches, sum(wall_ns) AS wall_ns,
    CASE WHEN count(device_active_ns) = count(*) THEN sum(device_active_ns) END AS device_active_ns,
    CASE WHEN count(device_busy_ns) = count(*) THEN sum(device_busy_ns) END AS device_busy_ns,
    CASE WHEN count(device_idle_ns) = count(*) THEN sum(device_idle_ns) END AS device_idle_ns,
    CASE WHEN count(tklqt_ns) = count(*) THEN sum(tklqt_ns) END AS tklqt_ns,
    CASE WHEN count(orchestration_ns) = count(*) THEN sum(orchestration_ns) END AS orchestration_ns
  FROM totals
  WHERE trace_id IS NOT NULL AND step_id IS NULL
  GROUP BY run_id
),
figures AS (
  SELECT totals.run_id, unnest([
    {'name': 'kernels', 'kept': totals.kernels, 'found': sums.kernels},
    {'name': 'memcpys', 'kept': totals.memcpys, 'found': sums.memcpys},
    {'name': 'memsets', 'kept': totals.memsets, 'found': sums.memsets},
    {'name': 'launches', 'kept': totals.launches, 'found': sums.launches},
    {'name': 'wall_ns', 'kept': totals.wall_ns, 'found': sums.wall_ns},
    {'name': 'device_active_ns', 'kept': totals.device_active_ns, 'found': sums.device_active_ns},
    {'name': 'device_busy_ns', 'kept': totals.device_busy_ns, 'found': sums.device_busy_ns},
    {'name': 'device_idle_ns', 'kept': totals.device_idle_ns, 'found': sums.device_idle_ns},
    {'name': 'tklqt_ns', 'kept': totals.tklqt_ns, 'found': sums.tklqt_ns},
    {'name': 'orchestration_ns', 'kept': totals.orchestration_ns, 'found': sums.orchestration_ns}
  ]) AS figure
  FROM totals
  LEFT JOIN sums USING (run_id)
  WHERE totals.trace_id IS NULL AND totals.step_id IS NULL
)
SELECT
  run_id,
  figure.name || ' of the run is ' || coalesce(figure.kept::VARCHAR, 'unknown')
  || ', its traces add up to ' || coalesce(figure.found::VARCHAR, 'unknown') AS message
FROM figures
WHERE figure.kept IS DISTINCT FROM figure.found
UNION ALL
SELECT
  run_id,
  'HDBI of step ' || coalesce(step_id::VARCHAR, '(all)') || ' is ' || coalesce(hdbi::VARCHAR, 'unknown')
  || ', but device time is ' || coalesce(device_active_ns::VARCHAR, 'unknown') || ' ns and T_Orchestration '
  || coalesce(orchestration_ns::VARCHAR, 'unknown') || ' ns'
FROM totals
WHERE (hdbi IS NULL) <> (coalesce(device_active_ns + orchestration_ns, 0) = 0)
  OR abs(hdbi - device_active_ns / nullif(device_active_ns + orchestration_ns, 0)) > 1e-9
ORDER BY ALL
