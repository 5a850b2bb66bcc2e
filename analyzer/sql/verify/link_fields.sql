-- Do both ends of each link say the same, and do launches agree with the events they own?
-- Grain: one row per run and rule that some rows break.
WITH owned AS (
  SELECT run_id, call_id, count(*) AS device_events, 
    -- A graph replay recorded as one block has an unknown number of kernels, of unknown time.
    bool_or(kind = 'graph') AS is_opaque,
    count(*) FILTER (kind = 'kernel') AS kernels,
    coalesce(sum(dur_ns) FILTER (kind = 'kernel' AND NOT bad_time), 0) AS exec_ns,
    coalesce(
      min(start_ns) FILTER (kind = 'graph' AND NOT bad_time),
      min(start_ns) FILTER (kind = 'kernel' AND NOT bad_time)
    ) AS first_ns
  FROM device_events
  WHERE call_id IS NOT NULL
  GROUP BY ALL
),
broken AS (
  SELECT device_events.run_id, 'device events are of another trace than their call' AS rule
  FROM device_events JOIN calls USING (run_id, call_id)
  WHERE device_events.trace_id <> calls.trace_id
  UNION ALL
  SELECT device_events.run_id, 'device events have another correlation id than their call'
  FROM device_events JOIN calls USING (run_id, call_id)
  WHERE device_events.correlation_id IS DISTINCT FROM calls.correlation_id
    AND NOT EXISTS (  -- a driver call within the runtime call that launched
      SELECT 1 FROM calls AS inner_call
      WHERE inner_call.run_id = calls.run_id AND inner_call.trace_id = calls.trace_id
        AND inner_call.thread_id = calls.thread_id
        AND inner_call.correlation_id = device_events.correlation_id
        AND inner_call.start_ns >= calls.start_ns
        AND inner_call.start_ns + inner_call.dur_ns <= calls.start_ns + calls.dur_ns
    )
  UNION ALL
  SELECT device_events.run_id, 'device events are in another step than their call'
  FROM device_events JOIN calls USING (run_id, call_id)
  WHERE device_events.step_id IS DISTINCT FROM calls.step_id
  UNION ALL
  SELECT device_events.run_id, 'device events have another op than their call'
  FROM device_events JOIN calls USING (run_id, call_id)
  WHERE device_events.op_id IS DISTINCT FROM calls.op_id
  UNION ALL
  SELECT calls.run_id, 'calls own another number of device events than they say'
  FROM calls LEFT JOIN owned USING (run_id, call_id)
  WHERE calls.device_events IS DISTINCT FROM coalesce(owned.device_events, 0)
  UNION ALL
  SELECT calls.run_id, 'calls start outside the op they are said to be in'
  FROM calls JOIN ops USING (run_id, op_id)
  WHERE calls.thread_id <> ops.thread_id OR calls.start_ns < ops.start_ns
    OR calls.start_ns >= ops.start_ns + ops.dur_ns
  UNION ALL
  SELECT calls.run_id, 'calls start outside the step they are said to be in'
  FROM calls JOIN steps USING (run_id, step_id)
  WHERE calls.start_ns < steps.start_ns OR calls.start_ns > steps.end_ns
  UNION ALL
  SELECT launches.run_id, 'launches own another number of kernels than they say'
  FROM launches LEFT JOIN owned USING (run_id, call_id)
  WHERE launches.kernels IS DISTINCT FROM
    CASE WHEN owned.is_opaque THEN NULL ELSE coalesce(owned.kernels, 0) END
  UNION ALL
  SELECT launches.run_id, 'launches say another kernel time than their kernels'
  FROM launches LEFT JOIN owned USING (run_id, call_id)
  WHERE launches.t_exec_ns IS DISTINCT FROM
    CASE WHEN owned.is_opaque THEN NULL ELSE coalesce(owned.exec_ns, 0) END
  UNION ALL
  SELECT launches.run_id, 'launches say another T_launch than call and first kernel'
  FROM launches JOIN calls USING (run_id, call_id) LEFT JOIN owned USING (run_id, call_id)
  WHERE launches.t_launch_ns IS DISTINCT FROM owned.first_ns - calls.start_ns
  UNION ALL
  SELECT launches.run_id, 'launches are in another step than their call'
  FROM launches JOIN calls USING (run_id, call_id)
  WHERE launches.step_id IS DISTINCT FROM calls.step_id
  UNION ALL
  SELECT calls.run_id, 'executed launch calls have no row in launches'
  FROM calls LEFT JOIN launches USING (run_id, call_id)
  WHERE calls.account IN ('launch', 'graph_launch') AND calls.is_launch AND NOT calls.in_capture
    AND NOT calls.bad_time AND launches.call_id IS NULL
)
SELECT run_id, count(*) || ' ' || rule AS message
FROM broken
GROUP BY run_id, rule
ORDER BY ALL
