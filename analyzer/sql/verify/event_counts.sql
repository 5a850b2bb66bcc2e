-- Are there as many rows as events were counted while reading?
-- Grain: one row per trace and class that differ. Events without a time are counted, not stored, so
-- there may be fewer rows of a class, never more.
WITH counted AS (
  SELECT
    run_id, trace_id, sum(events) AS events,
    coalesce(sum(events) FILTER (ph IN ('X', 'B') AND lower(category) IN ('cpu_op', 'operator')), 0) AS ops,
    coalesce(sum(events) FILTER (ph IN ('X', 'B') AND lower(category) = 'kernel'), 0) AS kernels
  FROM event_counts
  GROUP BY ALL
),
op_rows AS (SELECT run_id, trace_id, count(*) AS n FROM ops GROUP BY ALL),
kernel_rows AS (
  SELECT run_id, trace_id, count(*) AS n FROM device_events WHERE kind = 'kernel' GROUP BY ALL
)
SELECT
  traces.run_id,
  'trace ' || traces.trace_id || ': ' || coalesce(counted.events, 0) || ' events were counted by class, '
  || traces.events || ' in all; ' || coalesce(op_rows.n, 0) || ' ops stored of '
  || coalesce(counted.ops, 0) || ', ' || coalesce(kernel_rows.n, 0) || ' kernels of '
  || coalesce(counted.kernels, 0) AS message
FROM traces
LEFT JOIN counted USING (run_id, trace_id)
LEFT JOIN op_rows USING (run_id, trace_id)
LEFT JOIN kernel_rows USING (run_id, trace_id)
WHERE traces.events IS DISTINCT FROM coalesce(counted.events, 0)
  OR coalesce(op_rows.n, 0) > coalesce(counted.ops, 0)
  OR coalesce(kernel_rows.n, 0) > coalesce(counted.kernels, 0)
ORDER BY ALL
