-- Does every id lead to a row of its run?
-- Grain: one row per run and column with ids that lead nowhere. NULL leads nowhere and may.
WITH broken AS (
  SELECT source.run_id, 'device_events.call_id' AS source, 'calls' AS target, source.call_id AS id
  FROM device_events AS source
  LEFT JOIN calls AS target ON target.run_id = source.run_id AND target.call_id = source.call_id
  WHERE source.call_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.op_id' AS source, 'ops' AS target, source.op_id AS id
  FROM device_events AS source
  LEFT JOIN ops AS target ON target.run_id = source.run_id AND target.op_id = source.op_id
  WHERE source.op_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM device_events AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.kernel_id' AS source, 'kernels' AS target, source.kernel_id AS id
  FROM device_events AS source
  LEFT JOIN kernels AS target ON target.run_id = source.run_id AND target.kernel_id = source.kernel_id
  WHERE source.kernel_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM device_events AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.captured_op_name_id' AS source, 'names' AS target, source.captured_op_name_id AS id
  FROM device_events AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.captured_op_name_id
  WHERE source.captured_op_name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'device_events.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM device_events AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.op_id' AS source, 'ops' AS target, source.op_id AS id
  FROM calls AS source
  LEFT JOIN ops AS target ON target.run_id = source.run_id AND target.op_id = source.op_id
  WHERE source.op_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.outermost_op_id' AS source, 'ops' AS target, source.outermost_op_id AS id
  FROM calls AS source
  LEFT JOIN ops AS target ON target.run_id = source.run_id AND target.op_id = source.outermost_op_id
  WHERE source.outermost_op_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM calls AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM calls AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.thread_id' AS source, 'threads' AS target, source.thread_id AS id
  FROM calls AS source
  LEFT JOIN threads AS target ON target.run_id = source.run_id AND target.thread_id = source.thread_id
  WHERE source.thread_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'calls.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM calls AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.parent_op_id' AS source, 'ops' AS target, source.parent_op_id AS id
  FROM ops AS source
  LEFT JOIN ops AS target ON target.run_id = source.run_id AND target.op_id = source.parent_op_id
  WHERE source.parent_op_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.outermost_op_id' AS source, 'ops' AS target, source.outermost_op_id AS id
  FROM ops AS source
  LEFT JOIN ops AS target ON target.run_id = source.run_id AND target.op_id = source.outermost_op_id
  WHERE source.outermost_op_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM ops AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM ops AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.shape_id' AS source, 'shapes' AS target, source.shape_id AS id
  FROM ops AS source
  LEFT JOIN shapes AS target ON target.run_id = source.run_id AND target.shape_id = source.shape_id
  WHERE source.shape_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.thread_id' AS source, 'threads' AS target, source.thread_id AS id
  FROM ops AS source
  LEFT JOIN threads AS target ON target.run_id = source.run_id AND target.thread_id = source.thread_id
  WHERE source.thread_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ops.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM ops AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'kernels.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM kernels AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'kernels.op_name_id' AS source, 'names' AS target, source.op_name_id AS id
  FROM kernels AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.op_name_id
  WHERE source.op_name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'kernels.shape_id' AS source, 'shapes' AS target, source.shape_id AS id
  FROM kernels AS source
  LEFT JOIN shapes AS target ON target.run_id = source.run_id AND target.shape_id = source.shape_id
  WHERE source.shape_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'launches.call_id' AS source, 'calls' AS target, source.call_id AS id
  FROM launches AS source
  LEFT JOIN calls AS target ON target.run_id = source.run_id AND target.call_id = source.call_id
  WHERE source.call_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'launches.kernel_id' AS source, 'kernels' AS target, source.kernel_id AS id
  FROM launches AS source
  LEFT JOIN kernels AS target ON target.run_id = source.run_id AND target.kernel_id = source.kernel_id
  WHERE source.kernel_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'launches.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM launches AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'launches.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM launches AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'steps.thread_id' AS source, 'threads' AS target, source.thread_id AS id
  FROM steps AS source
  LEFT JOIN threads AS target ON target.run_id = source.run_id AND target.thread_id = source.thread_id
  WHERE source.thread_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'steps.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM steps AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ledger.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM ledger AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ledger.thread_id' AS source, 'threads' AS target, source.thread_id AS id
  FROM ledger AS source
  LEFT JOIN threads AS target ON target.run_id = source.run_id AND target.thread_id = source.thread_id
  WHERE source.thread_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ledger.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM ledger AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'totals.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM totals AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'totals.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM totals AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'event_counts.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM event_counts AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'trace_quality.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM trace_quality AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'checks.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM checks AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'matches.kernel_id' AS source, 'kernels' AS target, source.kernel_id AS id
  FROM matches AS source
  LEFT JOIN kernels AS target ON target.run_id = source.run_id AND target.kernel_id = source.kernel_id
  WHERE source.kernel_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'matches.replay_id' AS source, 'replay_kernels' AS target, source.replay_id AS id
  FROM matches AS source
  LEFT JOIN replay_kernels AS target ON target.run_id = source.run_id AND target.replay_id = source.replay_id
  WHERE source.replay_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'python_functions.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM python_functions AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'python_functions.thread_id' AS source, 'threads' AS target, source.thread_id AS id
  FROM python_functions AS source
  LEFT JOIN threads AS target ON target.run_id = source.run_id AND target.thread_id = source.thread_id
  WHERE source.thread_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'python_functions.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM python_functions AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ranks.trace_id' AS source, 'traces' AS target, source.trace_id AS id
  FROM ranks AS source
  LEFT JOIN traces AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'ranks.clock_trace_id' AS source, 'ranks' AS target, source.clock_trace_id AS id
  FROM ranks AS source
  LEFT JOIN ranks AS target ON target.run_id = source.run_id AND target.trace_id = source.clock_trace_id
  WHERE source.clock_trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'collectives.trace_id' AS source, 'ranks' AS target, source.trace_id AS id
  FROM collectives AS source
  LEFT JOIN ranks AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'collectives.late_trace_id' AS source, 'ranks' AS target, source.late_trace_id AS id
  FROM collectives AS source
  LEFT JOIN ranks AS target ON target.run_id = source.run_id AND target.trace_id = source.late_trace_id
  WHERE source.late_trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'collectives.device_event_id' AS source, 'device_events' AS target, source.device_event_id AS id
  FROM collectives AS source
  LEFT JOIN device_events AS target ON target.run_id = source.run_id AND target.device_event_id = source.device_event_id
  WHERE source.device_event_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'collectives.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM collectives AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'waits.trace_id' AS source, 'ranks' AS target, source.trace_id AS id
  FROM waits AS source
  LEFT JOIN ranks AS target ON target.run_id = source.run_id AND target.trace_id = source.trace_id
  WHERE source.trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'waits.late_trace_id' AS source, 'ranks' AS target, source.late_trace_id AS id
  FROM waits AS source
  LEFT JOIN ranks AS target ON target.run_id = source.run_id AND target.trace_id = source.late_trace_id
  WHERE source.late_trace_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'waits.step_id' AS source, 'steps' AS target, source.step_id AS id
  FROM waits AS source
  LEFT JOIN steps AS target ON target.run_id = source.run_id AND target.step_id = source.step_id
  WHERE source.step_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT source.run_id, 'waits.name_id' AS source, 'names' AS target, source.name_id AS id
  FROM waits AS source
  LEFT JOIN names AS target ON target.run_id = source.run_id AND target.name_id = source.name_id
  WHERE source.name_id IS NOT NULL AND target.run_id IS NULL
  UNION ALL
  SELECT runs.run_id, 'runs.host_id', 'hosts', NULL
  FROM runs LEFT JOIN hosts USING (host_id)
  WHERE runs.host_id IS NOT NULL AND hosts.host_id IS NULL
)
SELECT
  run_id,
  count(*) || ' ids in ' || source || ' have no row in ' || target
  || coalesce(' (e.g. ' || min(id) || ')', '') AS message
FROM broken
GROUP BY run_id, source, target
ORDER BY ALL
