-- The normalized store, version 4. One run has many traces; ids are ordinals within a run, so that a
-- run can be deleted and written again. No constraint, ENUM, sequence or default is relied on:
-- `analyzer verify` checks what they would promise. Times are integer nanoseconds on the trace's
-- clock; durations integer nanoseconds. NULL is unknown. "Kineto: ..." names the field a column is from.

CREATE TABLE IF NOT EXISTS store_info (
  schema_version INTEGER,        -- version of these tables; checked when a store is opened
  created_at VARCHAR,            -- ISO 8601, UTC
  created_by VARCHAR             -- program and version
);

CREATE TABLE IF NOT EXISTS runs (
  run_id VARCHAR,                -- first 32 hex digits of the content hash; the same content is the same run
  name VARCHAR,                  -- shown; need not be unique
  source VARCHAR,                -- run_directory | trace | ranks (the files of several ranks)
  path VARCHAR,                  -- where it was read from, as given; of ranks the folder that all are in
  content_sha256 VARCHAR,        -- of the files' roles and hashes
  recording_id VARCHAR,          -- manifest run_id; NULL for a bare trace
  created_at VARCHAR,            -- when it was recorded (ISO 8601), NULL if the source does not say
  ingested_at VARCHAR,           -- ISO 8601, UTC
  analyzer_version VARCHAR,
  host_id VARCHAR,               -- hosts.host_id
  model VARCHAR,
  mode VARCHAR,                  -- eager | hybrid | compile | graph | foreign
  attention VARCHAR,
  dtype VARCHAR,
  batch_size BIGINT,             -- sequences
  prompt_len BIGINT,             -- tokens
  new_tokens BIGINT,             -- tokens generated for each sequence
  gpu VARCHAR,                   -- Kineto: deviceProperties[].name, or the manifest
  step_annotation VARCHAR,       -- globs that were asked for, comma separated; see traces.step_source
  phases VARCHAR,                -- JSON: the manifest's phase plan
  manifest VARCHAR,              -- JSON: the whole manifest; NULL for a bare trace
  trace_metadata VARCHAR         -- JSON: top-level fields of the first trace, without events and logs
);

CREATE TABLE IF NOT EXISTS hosts (
  host_id VARCHAR,               -- hash of the row
  host VARCHAR,
  cpu VARCHAR,
  cpu_count BIGINT,
  cpu_governor VARCHAR,
  memory_bytes BIGINT,
  os VARCHAR,
  gpu VARCHAR,
  gpu_count BIGINT,
  gpu_memory_bytes BIGINT,
  driver VARCHAR,
  versions VARCHAR               -- JSON: library -> version
);

CREATE TABLE IF NOT EXISTS files (
  run_id VARCHAR,
  file VARCHAR,                  -- name in the run directory or the ranks' folder, or of the trace
  role VARCHAR,                  -- trace | capture | front_end | manifest | replay | floor | latency | execution_trace
  sha256 VARCHAR,
  bytes BIGINT                   -- as stored (compressed)
);

CREATE TABLE IF NOT EXISTS traces (
  run_id VARCHAR,
  trace_id INTEGER,              -- ordinal in the run; ids and correlations are of one trace only
  file VARCHAR,
  document INTEGER,              -- ordinal of the JSON document in the file (several gzip members)
  role VARCHAR,                  -- trace | capture | front_end (of a serving engine; in no figure)
  rank BIGINT,                   -- Kineto: distributedInfo.rank
  events BIGINT,                 -- events read, all phases
  json_bytes BIGINT,             -- decompressed
  start_ns BIGINT,               -- first start of an op, call or device event
  end_ns BIGINT,                 -- last end of one
  step_source VARCHAR,           -- hostbound | annotation | vllm | sglang | tensorrt-llm | atom | profiler | repetition | trace
  step_coverage DOUBLE,          -- share of its launches that are in steps, 0 to 1; NULL without launches
  step_confidence DOUBLE,        -- 1: marked; repetition: share of launches that repetitions have in common
  metadata VARCHAR               -- JSON: top-level fields without the events
);

CREATE TABLE IF NOT EXISTS event_counts (
  run_id VARCHAR,
  trace_id INTEGER,
  ph VARCHAR,                    -- Kineto: ph
  category VARCHAR,              -- Kineto: cat, '' if absent
  events BIGINT
);

CREATE TABLE IF NOT EXISTS trace_quality (
  run_id VARCHAR,
  trace_id INTEGER,              -- NULL: the run as a whole
  code VARCHAR,                  -- e.g. truncated, bad_time, bad_utf8, dropped_event, orphan_device_events
  severity VARCHAR,              -- warning | note
  count BIGINT,
  place VARCHAR,                 -- first place seen (byte offset or event index), NULL if none
  message VARCHAR                -- one line: what was found, where, what it means
);

-- What the trace can prove: one row for each trace and check. Figures are groups of columns, named in
-- docs/schema.md: device_time, device_idle, hdbi, launch_time, launches, host_cost, step_time, host_time.
CREATE TABLE IF NOT EXISTS checks (
  run_id VARCHAR,
  trace_id INTEGER,
  name VARCHAR,                  -- e.g. graph_launches, dropped_events, truncated
  verdict VARCHAR,               -- ok | touched (a figure is not what it seems) | unknown (cannot tell)
  count BIGINT,                  -- how often it was seen
  total BIGINT,                  -- of how many; NULL without a whole
  share DOUBLE,                  -- count / total, or of time; NULL without a whole
  found VARCHAR,                 -- what was found, in a clause; '' if nothing
  at_least VARCHAR[],            -- figures that are a lower bound
  at_most VARCHAR[],             -- figures that are an upper bound
  not_judged VARCHAR[],          -- figures of which not even a bound holds
  effect VARCHAR,                -- what follows, a sentence; NULL if nothing was found
  remedy VARCHAR                 -- what to do about it
);

CREATE TABLE IF NOT EXISTS names (
  run_id VARCHAR,
  name_id INTEGER,
  name VARCHAR                   -- raw name of an op, call, kernel or annotation
);

CREATE TABLE IF NOT EXISTS shapes (
  run_id VARCHAR,
  shape_id INTEGER,
  input_dims VARCHAR,            -- Kineto: args."Input Dims", text; NULL if absent
  input_types VARCHAR,           -- Kineto: args."Input type"
  input_strides VARCHAR,         -- Kineto: args."Input Strides"
  concrete_inputs VARCHAR        -- Kineto: args."Concrete Inputs"
);

CREATE TABLE IF NOT EXISTS threads (
  run_id VARCHAR,
  thread_id INTEGER,
  pid VARCHAR,                   -- Kineto: pid, text as in the trace
  tid VARCHAR,                   -- Kineto: tid, text as in the trace
  thread_name VARCHAR            -- Kineto: thread_name metadata event
);

CREATE TABLE IF NOT EXISTS steps (
  run_id VARCHAR,
  step_id INTEGER,
  trace_id INTEGER,
  name VARCHAR,                  -- annotation, or 'trace' where the whole trace is one step
  phase VARCHAR,                 -- prefill | decode | mixed | capture | step | trace
  step_index INTEGER,            -- ordinal in its phase and trace
  thread_id INTEGER,             -- main thread: the one with most launches
  start_ns BIGINT,
  end_ns BIGINT,
  elapsed_ns BIGINT,             -- start to the later of end_ns and the end of its last device event
  device_start_ns BIGINT,        -- first start of a device event that it launched; NULL without one
  device_end_ns BIGINT,          -- last end of one
  period_ns BIGINT,              -- start to the start of the next step of its thread; NULL for the last
  between_ns BIGINT,             -- end to that start: scheduling, sampling on the host, output
  between_exposed_ns BIGINT,     -- of it, while no device was busy; NULL if no device was seen
  is_warm_up BOOLEAN,            -- a first repetition, slower than the rest; in no median
  outer_name VARCHAR,            -- the engine's mark around it
  engine VARCHAR,                -- vllm | sglang | tensorrt-llm | atom; NULL: no engine marked it
  ctx_reqs BIGINT,               -- requests prefilled; this and what follows: NULL where the mark does not say
  ctx_tokens BIGINT,             -- their new tokens: the sum of their query lengths
  gen_reqs BIGINT,               -- requests that generate
  gen_tokens BIGINT,             -- their new tokens
  batch BIGINT,                  -- requests in all
  ctx_sk BIGINT,                 -- sum of key lengths of prefilled requests, cached tokens included
  ctx_sqsq BIGINT,               -- sum of squared query lengths
  ctx_sqsk BIGINT,               -- sum of query length times key length
  gen_sk BIGINT,                 -- the same sums of requests that generate
  gen_sqsq BIGINT,
  gen_sqsk BIGINT
);

CREATE TABLE IF NOT EXISTS ops (
  run_id VARCHAR,
  op_id INTEGER,
  trace_id INTEGER,
  event_index BIGINT,            -- position among the trace's events
  thread_id INTEGER,
  name_id INTEGER,
  start_ns BIGINT,               -- Kineto: ts
  dur_ns BIGINT,                 -- Kineto: dur
  is_region BOOLEAN,             -- wraps ops without being one (compiled regions, hooks)
  bad_time BOOLEAN,              -- kept and counted, in no sum
  external_id BIGINT,            -- Kineto: args."External id"
  shape_id INTEGER,              -- shapes.shape_id, NULL without recorded shapes
  parent_op_id INTEGER,          -- innermost op or region around it on its thread
  outermost_op_id INTEGER,       -- outermost op (no region) around it; itself if none
  step_id INTEGER                -- step in which it starts; NULL outside steps
);

CREATE TABLE IF NOT EXISTS calls (
  run_id VARCHAR,
  call_id INTEGER,
  trace_id INTEGER,
  event_index BIGINT,
  thread_id INTEGER,
  name_id INTEGER,
  account VARCHAR,               -- launch | graph_launch | memory | wait | other_call
  copy_wait_ns BIGINT,           -- of a copy, from its start: waiting for earlier work of its device; 0 else
  is_launch BOOLEAN,             -- starts device work: kernel, graph, memcpy or memset
  start_ns BIGINT,               -- Kineto: ts
  dur_ns BIGINT,                 -- Kineto: dur
  bad_time BOOLEAN,
  correlation_id BIGINT,         -- Kineto: args.correlation; NULL when 0, negative or absent
  external_id BIGINT,            -- Kineto: args."External id"; cross-check only
  op_id INTEGER,                 -- innermost op (no region) around its start on its thread
  outermost_op_id INTEGER,       -- outermost op around its start
  step_id INTEGER,
  device_events BIGINT,          -- device events that it owns
  in_capture BOOLEAN             -- recorded into a graph, not executed
);

CREATE TABLE IF NOT EXISTS kernels (
  run_id VARCHAR,
  kernel_id INTEGER,             -- identity: raw name, grid, block, shared memory, op, shapes
  name_id INTEGER,               -- raw name
  clean_name VARCHAR,            -- demangled, without arguments and template arguments; never empty
  family VARCHAR,                -- gemm, gemv, attention, norm, elementwise, ...
  is_library_paper BOOLEAN,      -- I_lib by the paper's rule
  is_library_evidence BOOLEAN,   -- I_lib by our rule
  grid VARCHAR,                  -- Kineto: args.grid, text
  block VARCHAR,                 -- Kineto: args.block
  shared_memory BIGINT,          -- Kineto: args."shared memory", bytes
  registers BIGINT,              -- Kineto: args."registers per thread"
  op_name_id INTEGER,            -- innermost op's name; NULL without op
  shape_id INTEGER               -- innermost op's shapes
);

CREATE TABLE IF NOT EXISTS device_events (
  run_id VARCHAR,
  device_event_id INTEGER,
  trace_id INTEGER,
  event_index BIGINT,
  kind VARCHAR,                  -- kernel | memcpy | memset | mtia | graph (a replay recorded as one block)
  name_id INTEGER,               -- Kineto: name
  kernel_id INTEGER,             -- kernels.kernel_id; NULL for memcpy, memset
  device VARCHAR,                -- Kineto: args.device, else pid
  stream VARCHAR,                -- Kineto: args.stream, else tid; a stream is (device, stream)
  start_ns BIGINT,
  dur_ns BIGINT,
  bad_time BOOLEAN,
  correlation_id BIGINT,         -- NULL when 0, negative or absent
  external_id BIGINT,            -- cross-check only
  bytes BIGINT,                  -- Kineto: args.bytes
  call_id INTEGER,               -- the call that started it; NULL: an orphan
  op_id INTEGER,                 -- innermost op of that call; for a graph replay see captured_op
  captured_op_name_id INTEGER,   -- op name lent by the capture of the graph; NULL otherwise
  step_id INTEGER,               -- step in which its launch call started
  graph_index BIGINT             -- place among the events of its graph launch; NULL otherwise
);

CREATE TABLE IF NOT EXISTS launches (
  run_id VARCHAR,
  call_id INTEGER,               -- one row for each kernel or graph launch; memcpy and memset are not here
  trace_id INTEGER,
  step_id INTEGER,
  kernel_id INTEGER,             -- of its (first) kernel; NULL without device event
  kernels BIGINT,                -- kernels it started; NULL for a graph replay recorded as one block
  is_graph BOOLEAN,
  t_py_ns BIGINT,                -- NULL without op
  t_dispatch_ns BIGINT,          -- less memory, wait and module-loading calls on the way
  t_dispatch_raw_ns BIGINT,      -- with them
  t_dispatch_inner_ns BIGINT,    -- from the innermost op (the paper's choice)
  t_launch_ns BIGINT,            -- first kernel start less call start; negative kept
  is_clean BOOLEAN,              -- the stream was seen idle at the call
  t_exec_ns BIGINT,              -- sum over its kernels
  is_library BOOLEAN,            -- I_lib used (evidence)
  dct_ns BIGINT,                 -- CUDA-library translation
  dft_ns BIGINT,                 -- framework translation
  dkt_ns BIGINT,                 -- launch path at the floor; the call's duration for a graph
  dkt_fw_ns BIGINT,              -- launch path above the floor; NULL without replay
  dct_paper_ns BIGINT,           -- the same by the paper's library rule
  match_tier VARCHAR,            -- exact | substring | most_frequent | unmatched; NULL without replay data
  replay_dispatch_ns BIGINT,     -- median of the matched replay
  replay_launch_ns BIGINT        -- median of the matched replay
);

CREATE TABLE IF NOT EXISTS ledger (
  run_id VARCHAR,
  trace_id INTEGER,
  step_id INTEGER,               -- NULL: the whole trace
  thread_id INTEGER,             -- launching thread; the rows of all add up to the step's wall time
  is_main BOOLEAN,               -- the thread with most launches of that step
  account VARCHAR,               -- python region framework library launch graph_launch memory copy_wait wait other_call
  ns BIGINT,
  exposed_ns BIGINT              -- of it, while the device was idle; NULL without device events
);

CREATE TABLE IF NOT EXISTS totals (
  run_id VARCHAR,
  trace_id INTEGER,              -- NULL: all traces of the run
  step_id INTEGER,               -- NULL: everything recorded
  kernels BIGINT, memcpys BIGINT, memsets BIGINT,
  launches BIGINT,               -- kernel launches and graph launches
  graph_launches BIGINT,
  launches_without_op BIGINT,
  orphan_device_events BIGINT,
  launches_without_device_event BIGINT,
  negative_gaps BIGINT,          -- launches whose kernel starts before the call
  clean_launches BIGINT,
  bad_time_events BIGINT,
  wall_ns BIGINT,
  -- Sum of kernel durations; NULL, as all device times, without device events; as kernels, with opaque graph replays.
  device_active_ns BIGINT,
  device_busy_ns BIGINT,         -- union of all device events, per device, then summed
  device_event_sum_ns BIGINT,    -- sum of all device events
  orphan_device_ns BIGINT,       -- of it, orphans
  active_outside_steps_ns BIGINT, -- of device_active_ns, kernels in no step; NULL in a step's row
  event_sum_outside_steps_ns BIGINT, -- of device_event_sum_ns, events in no step; NULL in a step's row
  busy_in_window_ns BIGINT,      -- union clipped to the step's window
  device_idle_ns BIGINT,         -- window less busy_in_window_ns
  t_py_ns BIGINT, t_dispatch_ns BIGINT, -- NULL, as all launch times, without launch calls
  t_base_ns BIGINT,
  ft_ns BIGINT, ct_ns BIGINT, kt_ns BIGINT, kt_fw_ns BIGINT,
  kt_fw_low_ns BIGINT, kt_fw_high_ns BIGINT,
  ct_paper_ns BIGINT,
  orchestration_ns BIGINT,
  tklqt_ns BIGINT,
  hdbi DOUBLE, hdbi_busy DOUBLE,
  launch_floor_ns BIGINT,
  floor_source VARCHAR           -- null_kernel | trace | none
);

CREATE TABLE IF NOT EXISTS floors (
  run_id VARCHAR,
  launch_api VARCHAR,
  definition VARCHAR,
  samples_ns BIGINT[],
  n BIGINT, p5_ns BIGINT, p50_ns BIGINT, mean_ns BIGINT, p95_ns BIGINT
);

CREATE TABLE IF NOT EXISTS replay_kernels (
  run_id VARCHAR,
  replay_id INTEGER,
  op_name VARCHAR,
  input_dims VARCHAR, input_types VARCHAR, input_strides VARCHAR, concrete_inputs VARCHAR,
  kernel_name VARCHAR,           -- NULL: the op could not be replayed or launched nothing
  clean_name VARCHAR,
  position BIGINT,               -- place among the op's kernels
  grid VARCHAR, block VARCHAR, shared_memory BIGINT,
  launch_api VARCHAR,
  occurrences BIGINT,            -- samples in which it was seen
  dispatch_ns BIGINT[],          -- raw samples
  launch_ns BIGINT[],
  exec_ns BIGINT[],
  reason VARCHAR                 -- why not, NULL if replayed
);

CREATE TABLE IF NOT EXISTS matches (
  run_id VARCHAR,
  kernel_id INTEGER,
  tier VARCHAR,                  -- exact | substring | most_frequent | unmatched
  replay_id INTEGER,             -- NULL if unmatched
  same_configuration BOOLEAN,    -- grid, block and shared memory equal too
  reason VARCHAR                 -- for unmatched
);

CREATE TABLE IF NOT EXISTS latency (
  run_id VARCHAR,
  request INTEGER,               -- ordinal; un-profiled
  ttft_ns BIGINT,
  tpot_ns BIGINT,                -- NULL for one token
  total_ns BIGINT,
  itl_ns BIGINT[]
);

CREATE TABLE IF NOT EXISTS step_latency (
  run_id VARCHAR,
  phase VARCHAR,                 -- prefill | decode
  wall_ns BIGINT[]               -- un-profiled wall time of each step
);

CREATE TABLE IF NOT EXISTS python_functions (
  run_id VARCHAR,
  trace_id INTEGER,
  event_index BIGINT,
  thread_id INTEGER,
  name_id INTEGER,
  start_ns BIGINT,
  dur_ns BIGINT                  -- loaded only with --python-functions; always counted
);

CREATE TABLE IF NOT EXISTS ranks (
  run_id VARCHAR,
  trace_id INTEGER,              -- one row for each rank's trace; none if the run's traces are no ranks
  rank BIGINT,                   -- Kineto: distributedInfo.rank; else by file name or device
  world_size BIGINT,             -- Kineto: distributedInfo.world_size; NULL where nothing tells
  label VARCHAR,                 -- what told the rank: rank 1, tp1, device 1
  repetition BIGINT,             -- which of the traces of this rank; 0 is the first
  clock_offset_ns BIGINT,        -- its clock less the first rank's; NULL without a common collective
  clock_error_ns BIGINT,         -- 95 % of the ends of pairs differ by at most that after the offset
  clock_trace_id INTEGER,        -- the rank that the offset was measured against
  clock_pairs BIGINT,            -- collectives shared with that rank
  clock_good_pairs BIGINT,       -- of them, real pairs
  ahead_ns BIGINT                -- median time from a collective's launch call's end to its start; NULL without calls
);

CREATE TABLE IF NOT EXISTS collectives (
  run_id VARCHAR,
  collective_id BIGINT,          -- the same on all ranks of a collective; one row for each rank
  trace_id INTEGER,
  device_event_id INTEGER,
  step_id INTEGER,
  process_group VARCHAR,         -- Kineto: args."Process Group Name" and Ranks; NULL: paired by stream
  stream VARCHAR,                -- of collectives without group: the stream, or its place among such
  number BIGINT,                 -- it is the n-th of its group or stream on its rank, from 0
  collective VARCHAR,            -- Kineto: args."Collective name"; else the kernel's clean name
  bytes BIGINT,                  -- of its larger buffer; NULL if not recorded
  aligned_start_ns BIGINT,       -- start on the first rank's clock; NULL if the offset is unknown
  dur_ns BIGINT,
  is_pair BOOLEAN,               -- the same collective on all its ranks; NULL: no other rank has it
  wait_ns BIGINT,                -- until the last rank began; NULL: unknown, as the next two
  transfer_ns BIGINT,            -- the rest of dur_ns
  late_trace_id INTEGER          -- the rank that began last
);

CREATE TABLE IF NOT EXISTS waits (
  run_id VARCHAR,
  trace_id INTEGER,              -- the rank that waited; its rows add up to its collectives' wait_ns
  step_id INTEGER,               -- of the collective's launch; NULL outside steps
  late_trace_id INTEGER,         -- the rank that is charged
  account VARCHAR,               -- of its ledger, or between_steps | device_queue | not_recorded
  name_id INTEGER,               -- op, call, region, range or kernel that held it then; NULL: none known
  is_before BOOLEAN,             -- nothing held it: the name is of what came next
  ns BIGINT
);
