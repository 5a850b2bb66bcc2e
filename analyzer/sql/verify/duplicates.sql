-- Is every id there once in its run, and every run once in the store?
-- Grain: one row per run and table with ids that occur more than once.
WITH repeated AS (
  SELECT run_id, 'runs' AS source, NULL::INTEGER AS id FROM runs GROUP BY run_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'traces' AS source, trace_id AS id FROM traces GROUP BY run_id, trace_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'names' AS source, name_id AS id FROM names GROUP BY run_id, name_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'shapes' AS source, shape_id AS id FROM shapes GROUP BY run_id, shape_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'threads' AS source, thread_id AS id FROM threads GROUP BY run_id, thread_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'steps' AS source, step_id AS id FROM steps GROUP BY run_id, step_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'ops' AS source, op_id AS id FROM ops GROUP BY run_id, op_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'calls' AS source, call_id AS id FROM calls GROUP BY run_id, call_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'kernels' AS source, kernel_id AS id FROM kernels GROUP BY run_id, kernel_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'device_events' AS source, device_event_id AS id FROM device_events GROUP BY run_id, device_event_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'launches' AS source, call_id AS id FROM launches GROUP BY run_id, call_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'replay_kernels' AS source, replay_id AS id FROM replay_kernels GROUP BY run_id, replay_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'matches' AS source, kernel_id AS id FROM matches GROUP BY run_id, kernel_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'ranks', trace_id FROM ranks GROUP BY run_id, trace_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'collectives', device_event_id FROM collectives GROUP BY run_id, device_event_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'totals', step_id FROM totals GROUP BY run_id, trace_id, step_id HAVING count(*) > 1
  UNION ALL
  SELECT run_id, 'files', NULL FROM files GROUP BY run_id, file, role HAVING count(*) > 1
  UNION ALL
  SELECT NULL, 'hosts', NULL FROM hosts GROUP BY host_id HAVING count(*) > 1
)
SELECT
  run_id,
  CASE source WHEN 'runs' THEN 'the run is there more than once; load it again with --replace'
    ELSE count(*) || ' ids in ' || source || ' occur more than once'
      || coalesce(' (e.g. ' || min(id) || ')', '') END AS message
FROM repeated
GROUP BY run_id, source
ORDER BY ALL
