"""`collector record`: a model, several variants of it, or a script, into run directories."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collector.cli import sending_options
from schemas.errors import HostboundError

if TYPE_CHECKING:
    from collector.record.job import Place
    from collector.record.request import Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="NAME|PATH", help="built-in model or checkpoint folder")
    what.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="FILE",
        help="a Python script and its arguments (last option)",
    )
    parser.add_argument(
        "--mode",
        action="append",
        choices=("eager", "compile", "graph", "hybrid"),
        help="default: eager. Several, and several --batch-size: each variant becomes a run "
        "directory of its own, recorded interleaved with the others, trace by trace",
    )
    parser.add_argument(
        "--tp",
        type=int,
        default=1,
        metavar="N",
        help="split the model over N GPUs of this host, a process each; under torchrun, over its "
        "ranks. Each rank's run directory goes into the folder --out",
    )
    parser.add_argument("--batch-size", type=int, action="append", metavar="N", help="default: 1")
    parser.add_argument("--prompt-len", type=int, default=512, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=10, metavar="N")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    parser.add_argument(
        "--experts",
        choices=("eager", "grouped_mm", "batched_mm"),
        help="how a MoE's experts run (default: transformers')",
    )
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--warmup", type=int, default=10, metavar="N")
    parser.add_argument("--latency-runs", type=int, default=50, metavar="N")
    parser.add_argument("--trace-runs", type=int, default=3, metavar="N")
    parser.add_argument(
        "--replay",
        type=_samples,
        default=150,
        metavar="N|off",
        help="samples of each op call in the kernel replay (default: 150); off leaves it out, not "
        "the launch floor",
    )
    parser.add_argument(
        "--replay-budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="fewer replay samples if they would take longer",
    )
    parser.add_argument(
        "--all-logits",
        action="store_true",
        help="logits of every position of the prompt, not of its last only",
    )
    parser.add_argument("--stacks", action="store_true", help="record Python frames too")
    parser.add_argument(
        "--prompt", metavar="TEXT|@FILE", help="text instead of random ids (checkpoints)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="DIR",
        help="the run directory to make (default: runs/NAME); of several variants, the folder for "
        "theirs (default: runs)",
    )
    parser.add_argument("--name", default=None)
    parser.add_argument(
        "--upload", metavar="URL", help="send each run to this server when it is recorded"
    )
    sending_options.add_arguments(parser, patience_s=30.0)


def _samples(text: str) -> int | None:
    if text == "off":
        return None
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of samples; give 1 or more, or off")
    return value


def run(args: argparse.Namespace) -> int:
    """Record a model or a script; send it if that was asked for."""
    if args.upload is not None:
        from collector.upload import sending

        # Before the work, not after it.
        args.upload = sending.check(sending_options.options(args), args.upload)
    where = _place(args)
    if args.tp > 1 and where is None:
        from collector.record import job

        return job.start(args.tp, args.out or Path("runs"))
    written = _record_model(args, where) if args.script is None else [_record_script(args, where)]
    for path in written:
        sys.stdout.write(f"{path}\n")
    sys.stdout.flush()
    return 0 if args.upload is None else _send(args, written)


def _place(args: argparse.Namespace) -> Place | None:
    from collector.errors import CollectorError
    from collector.record import job

    if args.tp < 1:
        raise CollectorError(f"--tp {args.tp} is no number of ranks; give 1 or more.")
    where = job.place()
    if where is not None or args.tp > 1:
        if args.upload is not None:
            raise CollectorError(
                "--upload sends runs of one process; load the folder of a job's ranks with "
                "`analyzer ingest`."
            )
        ranks = args.tp if where is None else where.world_size
        if args.tp not in (1, ranks) or args.tp < 1:
            raise CollectorError(f"--tp is {args.tp}, but torchrun started {ranks} ranks.")
    if where is not None:
        args.device = where.device(args.device)
    return where


def _record_model(args: argparse.Namespace, where: Place | None) -> list[Path]:
    from collector.record import session

    return session.record(_variants(args), where=where)


def _variants(args: argparse.Namespace) -> list[Variant]:
    from collector.errors import CollectorError
    from collector.record.request import Request, variants

    prompt = args.prompt
    if prompt and prompt.startswith("@"):
        try:
            prompt = Path(prompt[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CollectorError(f"{prompt[1:]} cannot be read as text: {error}.") from error
    request = Request(
        model=args.model,
        prompt_len=args.prompt_len,
        new_tokens=args.new_tokens,
        attention=args.attention,
        experts=args.experts,
        dtype=args.dtype,
        device=args.device,
        warmup=args.warmup,
        latency_runs=args.latency_runs,
        trace_runs=args.trace_runs,
        replay_runs=args.replay,
        replay_budget_s=args.replay_budget,
        stacks=args.stacks,
        prompt=prompt,
        seed=args.seed,
        all_logits=args.all_logits,
        tensor_parallel=args.tp,
    )
    modes, batch_sizes = args.mode or ["eager"], args.batch_size or [1]
    return variants(request, modes, batch_sizes, args.name, args.out)


def _record_script(args: argparse.Namespace, where: Place | None) -> Path:
    from collector.errors import CollectorError
    from collector.record import job
    from collector.record.annotate import recording

    if not args.script or not Path(args.script[0]).is_file():
        raise CollectorError(
            f"--script names no file: {args.script[0] if args.script else 'nothing was given'}."
        )
    name = args.name or Path(args.script[0]).stem
    folder = args.out or Path("runs") / name
    out, of_job = folder, None
    if where is not None:
        out, of_job = where.target(folder), job.of_script(where, folder)
    device = args.device if args.device != "cuda:0" else None
    before = sys.argv
    sys.argv = list(args.script)
    try:
        with recording(out, name=name, device=device, stacks=args.stacks, job=of_job):
            try:
                runpy.run_path(args.script[0], run_name="__main__")
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise CollectorError(
                        f"{args.script[0]} ended with {error.code}; nothing was recorded."
                    ) from error
    finally:
        sys.argv = before
    if of_job is not None:
        job.finish(folder, of_job)
    return out


def _send(args: argparse.Namespace, written: Sequence[Path]) -> int:
    """Spool and send new runs: they are recorded, so whatever happens now is no failure of that."""
    from collector.upload import sending

    options = sending_options.options(args)
    code = 0
    try:
        spool = options.open_spool()
        entries = [spool.add(path, args.upload, options.delete_after) for path in written]
        for outcome in sending.send(options, entries):
            if outcome.stored is not None:
                sys.stderr.write(f"{args.upload} has it as {outcome.stored.sha256}\n")
            else:
                sys.stderr.write(f"collector: {outcome.error}\n")
                code = max(code, int(outcome.code == 2))  # what is spooled is no finding
    except KeyboardInterrupt:
        sys.stderr.write(f"collector: interrupted; {_named(written)} recorded. {options.later()}\n")
        return 130
    except HostboundError as error:
        sys.stderr.write(f"collector: {_named(written)} recorded but not sent: {error}\n")
        return 1
    return code


def _named(written: Sequence[Path]) -> str:
    names = ", ".join(str(path) for path in written)
    return f"{names} {'is' if len(written) == 1 else 'are'}"
