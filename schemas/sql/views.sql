-- Views that a person would query: names instead of ids, one grain each. Times in integer nanoseconds.

CREATE OR REPLACE VIEW run_totals AS
SELECT runs.name, runs.model, runs.mode, runs.batch_size, runs.prompt_len, runs.gpu, totals.*
FROM totals
JOIN runs USING (run_id)
WHERE totals.trace_id IS NULL AND totals.step_id IS NULL;

CREATE OR REPLACE VIEW step_totals AS
SELECT runs.name AS run_name, steps.name AS step, steps.phase, steps.step_index, totals.*
FROM totals
JOIN steps USING (run_id, trace_id, step_id)
JOIN runs USING (run_id);

-- One row per run, phase and batch: medians of its steps, warm-up left out. Steps of batch 1 and of 64
-- are two rows. overlap: the part of the host's ranges in which a device was busy.
CREATE OR REPLACE VIEW step_groups AS
SELECT
  run_id, any_value(runs.name) AS run_name, any_value(steps.engine) AS engine, steps.phase, steps.batch,
  count(*) AS steps,
  median(steps.end_ns - steps.start_ns)::BIGINT AS host_ns,
  median(steps.device_end_ns - steps.device_start_ns)::BIGINT AS device_ns,
  median(steps.period_ns)::BIGINT AS period_ns,
  median(steps.between_ns)::BIGINT AS between_ns,
  sum(totals.device_idle_ns)::BIGINT AS exposed_ns,
  sum(steps.between_exposed_ns)::BIGINT AS between_exposed_ns,
  1 - sum(totals.device_idle_ns) / nullif(sum(totals.wall_ns), 0) AS overlap
FROM steps
JOIN totals USING (run_id, trace_id, step_id)
JOIN runs USING (run_id)
WHERE NOT steps.is_warm_up
GROUP BY run_id, steps.phase, steps.batch;

-- One row per op, region left out or told by is_region, with the text of its name and shapes.
CREATE OR REPLACE VIEW op_events AS
SELECT
  ops.run_id, ops.op_id, ops.trace_id, names.name AS op, ops.is_region, ops.start_ns, ops.dur_ns,
  ops.thread_id, ops.step_id, ops.parent_op_id, ops.outermost_op_id,
  shapes.input_dims, shapes.input_types, shapes.input_strides, shapes.concrete_inputs
FROM ops
JOIN names USING (run_id, name_id)
LEFT JOIN shapes USING (run_id, shape_id);

-- One row per device event with its launch call and op: the links.
CREATE OR REPLACE VIEW links AS
SELECT
  device_events.run_id, device_events.trace_id, device_events.step_id,
  device_events.device_event_id, device_events.kind, kernel_name.name AS kernel,
  device_events.device, device_events.stream, device_events.start_ns, device_events.dur_ns,
  device_events.call_id, call_name.name AS call, calls.start_ns AS call_start_ns, calls.dur_ns AS call_dur_ns,
  device_events.op_id, coalesce(captured_name.name, op_name.name) AS op,
  device_events.captured_op_name_id IS NOT NULL AS op_from_capture,
  device_events.graph_index, device_events.kernel_id
FROM device_events
JOIN names AS kernel_name
  ON kernel_name.run_id = device_events.run_id AND kernel_name.name_id = device_events.name_id
LEFT JOIN calls ON calls.run_id = device_events.run_id AND calls.call_id = device_events.call_id
LEFT JOIN names AS call_name ON call_name.run_id = calls.run_id AND call_name.name_id = calls.name_id
LEFT JOIN ops ON ops.run_id = device_events.run_id AND ops.op_id = device_events.op_id
LEFT JOIN names AS op_name ON op_name.run_id = ops.run_id AND op_name.name_id = ops.name_id
LEFT JOIN names AS captured_name
  ON captured_name.run_id = device_events.run_id
  AND captured_name.name_id = device_events.captured_op_name_id;

-- One row per launch with its names and the decomposition.
CREATE OR REPLACE VIEW launch_costs AS
SELECT
  launches.*, call_name.name AS call, calls.start_ns AS call_start_ns, calls.dur_ns AS call_dur_ns,
  calls.thread_id, kernel_name.name AS kernel, kernels.clean_name, kernels.family, op_name.name AS op
FROM launches
JOIN calls USING (run_id, call_id)
JOIN names AS call_name ON call_name.run_id = calls.run_id AND call_name.name_id = calls.name_id
LEFT JOIN kernels ON kernels.run_id = launches.run_id AND kernels.kernel_id = launches.kernel_id
LEFT JOIN names AS kernel_name
  ON kernel_name.run_id = kernels.run_id AND kernel_name.name_id = kernels.name_id
LEFT JOIN names AS op_name
  ON op_name.run_id = kernels.run_id AND op_name.name_id = kernels.op_name_id;

-- One row per kernel identity: how often, how long, what it costs to launch.
CREATE OR REPLACE VIEW kernel_summary AS
SELECT
  device_events.run_id, device_events.kernel_id, any_value(names.name) AS kernel,
  any_value(kernels.clean_name) AS clean_name, any_value(kernels.family) AS family,
  any_value(op_name.name) AS op, any_value(kernels.grid) AS grid, any_value(kernels.block) AS block,
  count(*) AS kernels, sum(device_events.dur_ns)::BIGINT AS device_ns,
  min(device_events.dur_ns) AS min_ns, max(device_events.dur_ns) AS max_ns
FROM device_events
JOIN kernels USING (run_id, kernel_id)
JOIN names ON names.run_id = kernels.run_id AND names.name_id = kernels.name_id
LEFT JOIN names AS op_name
  ON op_name.run_id = kernels.run_id AND op_name.name_id = kernels.op_name_id
WHERE NOT device_events.bad_time
GROUP BY device_events.run_id, device_events.kernel_id;

-- One row per rank that waited, rank that was late, step, account and what held the late rank.
CREATE OR REPLACE VIEW rank_waits AS
SELECT
  waits.run_id, runs.name AS run_name, waits.trace_id, waiting.rank, waits.late_trace_id, late.rank AS late_rank,
  waits.step_id, steps.name AS step, steps.phase, waits.account, names.name AS held_by, waits.is_before, waits.ns
FROM waits
JOIN runs USING (run_id)
JOIN ranks AS waiting ON waiting.run_id = waits.run_id AND waiting.trace_id = waits.trace_id
JOIN ranks AS late ON late.run_id = waits.run_id AND late.trace_id = waits.late_trace_id
LEFT JOIN steps ON steps.run_id = waits.run_id AND steps.step_id = waits.step_id
LEFT JOIN names ON names.run_id = waits.run_id AND names.name_id = waits.name_id;
