-- Do the launches' parts add up to the totals of each step and of each trace?
-- Grain: one row per trace, step and figure that differ. A sum with an unknown part is unknown:
-- dft, dct over launches with an op; dkt over all of them. Every time is unknown in a trace without
-- launch calls; TKLQT also in one without device events.
WITH scoped AS (
  SELECT launches.* FROM launches
  UNION ALL
  SELECT launches.* REPLACE (NULL AS step_id) FROM launches WHERE step_id IS NOT NULL
),
sums AS (
  SELECT
    run_id, trace_id, step_id,
    count(*) AS launches,
    count(*) FILTER (is_graph) AS graph_launches,
    count(*) FILTER (t_dispatch_ns IS NULL) AS launches_without_op,
    count(*) FILTER (t_launch_ns < 0) AS negative_gaps,
    count(*) FILTER (is_clean) AS clean_launches,
    sum(t_py_ns) AS t_py_ns,
    sum(t_dispatch_ns) AS t_dispatch_ns,
    CASE WHEN count(*) FILTER (t_dispatch_ns IS NOT NULL AND dft_ns IS NULL) = 0
      THEN coalesce(sum(dft_ns), 0) END AS ft_ns,
    CASE WHEN count(*) FILTER (t_dispatch_ns IS NOT NULL AND dct_ns IS NULL) = 0
      THEN coalesce(sum(dct_ns), 0) END AS ct_ns,
    CASE WHEN count(*) FILTER (t_dispatch_ns IS NOT NULL AND dct_paper_ns IS NULL) = 0
      THEN coalesce(sum(dct_paper_ns), 0) END AS ct_paper_ns,
    CASE WHEN count(*) FILTER (dkt_ns IS NULL) = 0 THEN sum(dkt_ns) END AS kt_ns,
    sum(t_launch_ns) AS tklqt_ns
  FROM scoped
  GROUP BY ALL
),
seen AS (
  SELECT traces.run_id, traces.trace_id,
    count(calls.call_id) > 0 AS has_launches,
    (SELECT count(*) FROM device_events
     WHERE device_events.run_id = traces.run_id AND device_events.trace_id = traces.trace_id) > 0
      AS has_device
  FROM traces
  LEFT JOIN calls ON calls.run_id = traces.run_id AND calls.trace_id = traces.trace_id
    AND calls.is_launch AND calls.account IN ('launch', 'graph_launch')
  GROUP BY traces.run_id, traces.trace_id
),
figures AS (
  SELECT totals.run_id, totals.trace_id, totals.step_id, unnest([
    {'name': 'launches', 'kept': totals.launches, 'found': coalesce(sums.launches, 0)},
    {'name': 'graph_launches', 'kept': totals.graph_launches,
      'found': coalesce(sums.graph_launches, 0)},
    {'name': 'launches_without_op', 'kept': totals.launches_without_op,
      'found': coalesce(sums.launches_without_op, 0)},
    {'name': 'negative_gaps', 'kept': totals.negative_gaps,
      'found': coalesce(sums.negative_gaps, 0)},
    {'name': 'clean_launches', 'kept': totals.clean_launches,
      'found': coalesce(sums.clean_launches, 0)},
    {'name': 't_py_ns', 'kept': totals.t_py_ns, 'found': CASE WHEN seen.has_launches THEN coalesce(sums.t_py_ns, 0) END},
    {'name': 't_dispatch_ns', 'kept': totals.t_dispatch_ns,
      'found': CASE WHEN seen.has_launches THEN coalesce(sums.t_dispatch_ns, 0) END},
    {'name': 'ft_ns', 'kept': totals.ft_ns,
      'found': CASE WHEN seen.has_launches THEN CASE WHEN sums.run_id IS NULL THEN 0 ELSE sums.ft_ns END END},
    {'name': 'ct_ns', 'kept': totals.ct_ns,
      'found': CASE WHEN seen.has_launches THEN CASE WHEN sums.run_id IS NULL THEN 0 ELSE sums.ct_ns END END},
    {'name': 'ct_paper_ns', 'kept': totals.ct_paper_ns,
      'found': CASE WHEN seen.has_launches THEN CASE WHEN sums.run_id IS NULL THEN 0 ELSE sums.ct_paper_ns END END},
    {'name': 'kt_ns', 'kept': totals.kt_ns,
      'found': CASE WHEN seen.has_launches THEN CASE WHEN sums.run_id IS NULL THEN 0 ELSE sums.kt_ns END END},
    {'name': 'tklqt_ns', 'kept': totals.tklqt_ns,
      'found': CASE WHEN seen.has_launches AND seen.has_device THEN coalesce(sums.tklqt_ns, 0) END},
    {'name': 'orchestration_ns', 'kept': totals.orchestration_ns,
      'found': totals.t_py_ns + totals.t_dispatch_ns + totals.kt_ns},
    {'name': 'ft_ns + ct_ns', 'kept': totals.ft_ns + totals.ct_ns,
      'found': CASE WHEN totals.ft_ns IS NOT NULL AND totals.ct_ns IS NOT NULL
        THEN totals.t_py_ns + totals.t_dispatch_ns END}
  ]) AS figure
  FROM totals
  JOIN seen ON seen.run_id = totals.run_id AND seen.trace_id = totals.trace_id
  LEFT JOIN sums
    ON sums.run_id = totals.run_id AND sums.trace_id = totals.trace_id
    AND sums.step_id IS NOT DISTINCT FROM totals.step_id
  WHERE totals.trace_id IS NOT NULL
)
SELECT
  run_id,
  'step ' || coalesce(step_id::VARCHAR, '(whole trace)') || ' of trace ' || trace_id || ': '
  || figure.name || ' is ' || coalesce(figure.kept::VARCHAR, 'unknown') || ' in the totals, '
  || coalesce(figure.found::VARCHAR, 'unknown') || ' by its launches' AS message
FROM figures
WHERE figure.kept IS DISTINCT FROM figure.found
ORDER BY ALL
