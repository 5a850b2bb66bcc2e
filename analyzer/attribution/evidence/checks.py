"""The checks of a trace, by name, each with its remedy."""

from __future__ import annotations

from collections.abc import Callable

from analyzer.attribution.evidence import clocks, lost_events, owners, recording
from analyzer.attribution.evidence.check import Check, Seen, verdict
from analyzer.attribution.evidence.material import Material

# Name to what looks, and what a user can do about what it sees.
KINDS: dict[str, tuple[Callable[[Material], Seen], str]] = {
    "graph_launches": (
        lost_events.graph_launches,
        "Start the profiler before the graphs are captured and set TEARDOWN_CUPTI=0 and "
        "DISABLE_CUPTI_LAZY_REINIT=1; or record with `nsys profile --cuda-graph-trace=node`.",
    ),
    "dropped_events": (
        lost_events.dropped_events,
        "Record fewer steps, synchronise the device before the profiler stops, and give CUPTI more "
        "buffers: set KINETO_CONFIG to a file with ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=1024; in nsys "
        "a shorter --duration.",
    ),
    "opaque_graphs": (
        lost_events.opaque_graphs,
        "Record again with `nsys profile --cuda-graph-trace=node`.",
    ),
    "late_bursts": (
        clocks.late_bursts,
        "Profile from an idle device: synchronise before the profiler starts and use warm-up steps "
        "in its schedule (`torch.profiler.schedule(wait=1, warmup=2, active=3)`); load the whole "
        "recording, not an excerpt; update the driver if stamps stay late.",
    ),
    "clocks": (
        clocks.clocks,
        "Record again with a newer PyTorch and driver, whose clocks agree, and do not set the "
        "host's clock while recording.",
    ),
    "profiler_cost": (
        recording.profiler_cost,
        "Record without stacks (with_stack=False), shapes (record_shapes=False) and memory "
        "(profile_memory=False); `collector record` times the same steps without the profiler.",
    ),
    "truncated": (
        recording.truncated,
        "Copy or record the file again, and wait until the profiler has written it "
        "(`export_chrome_trace` returns).",
    ),
    "cut_steps": (
        recording.cut_steps,
        "Start and stop the profiler between steps (`prof.step()` after each), or leave the first "
        "and the last step out with --step-annotation.",
    ),
    "outside_steps": (
        owners.outside_steps,
        "Record the threads that launch: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
        "in nsys --trace=cuda; name your own marks with --step-annotation.",
    ),
    "other_processes": (
        owners.other_processes,
        "Leave the device to one process (CUDA_VISIBLE_DEVICES; no MPS), and give each process's "
        "own trace.",
    ),
    "contexts": (
        owners.contexts,
        "Use one context a device, and compare runs of the same MIG slice only (`nvidia-smi -L` "
        "lists them).",
    ),
    "duplicates": (
        recording.duplicates,
        "Export the trace once a recording, and merge files by rank, each one time.",
    ),
    "several_traces": (
        recording.several_traces,
        "Give each recording a file of its own: write to a new name, for example with "
        "`tensorboard_trace_handler`, and load the files together.",
    ),
}


def check_trace(material: Material) -> list[Check]:
    """The checks of a trace, in their fixed order."""
    return [verdict(name, look(material), remedy) for name, (look, remedy) in KINDS.items()]
