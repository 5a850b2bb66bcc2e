"""The command `collector`: record, replay, floor, doctor, upload.

Exit codes: 0 good, 1 done with a finding, 2 refused (one line on stderr says why). Results go to
stdout, the rest to stderr. torch is imported by the command that needs it, so that --help is quick.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import HostboundError
from schemas.extras import require


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = _parser().parse_args(argv)
    if args.needs_torch:
        require("collector", "torch")
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except HostboundError as error:
        sys.stderr.write(f"collector: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("collector: interrupted; no run directory was written.\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collector",
        description="Record a model's traces, latency, kernel replays and launch floor on a GPU "
        "host.",
        epilog="Start with: collector doctor && collector record --model gpt2",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str, function: Callable[[argparse.Namespace], int], summary: str, torch: bool = True
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=function, needs_torch=torch)
        return sub

    record = add("record", record_command, "Record a workload into a run directory.")
    what = record.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="NAME|PATH", help="built-in model or checkpoint folder")
    what.add_argument(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="FILE",
        help="a Python script and its arguments (last option)",
    )
    record.add_argument("--mode", default="eager", choices=("eager", "compile", "graph", "hybrid"))
    record.add_argument("--batch-size", type=int, default=1, metavar="N")
    record.add_argument("--prompt-len", type=int, default=512, metavar="N")
    record.add_argument("--new-tokens", type=int, default=10, metavar="N")
    record.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    record.add_argument(
        "--experts",
        choices=("eager", "grouped_mm", "batched_mm"),
        help="how a MoE's experts run (default: transformers')",
    )
    record.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    record.add_argument("--warmup", type=int, default=10, metavar="N")
    record.add_argument("--latency-runs", type=int, default=50, metavar="N")
    record.add_argument("--trace-runs", type=int, default=3, metavar="N")
    record.add_argument("--replay-runs", type=int, default=150, metavar="N")
    record.add_argument(
        "--replay-budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="fewer replay samples if they would take longer",
    )
    record.add_argument(
        "--no-replay", action="store_true", help="leave kernel replay out (not the launch floor)"
    )
    record.add_argument(
        "--all-logits",
        action="store_true",
        help="logits of every position of the prompt, not of its last only",
    )
    record.add_argument(
        "--steady-budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="time for waiting until the host is steady and for traces recorded again "
        "(default: 20, with --turns 0: take it as it is)",
    )
    record.add_argument(
        "--like",
        type=Path,
        default=None,
        metavar="RUN_DIR",
        help="record while the host runs as fast as it did in that run",
    )
    turns = record.add_argument_group(
        "recording in turns",
        "Recordings that are started together with the same folder measure in turns, a trace each, "
        "never two at once and on one CPU: they see the same minutes of it, so times can be "
        "compared even if it changes its speed. Models and modes may differ; they must fit into "
        "the GPU's memory together.",
    )
    turns.add_argument(
        "--turns",
        default=None,
        metavar="DIR",
        help="take turns with the recordings that are given this folder too (it is made if it is "
        "not there)",
    )
    turns.add_argument(
        "--turns-of",
        type=int,
        default=2,
        metavar="N",
        help="how many recordings there are, this one included (default: %(default)s)",
    )
    turns.add_argument(
        "--turns-patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="begin without those that have not been started so long after this one was ready "
        "(default: %(default)g)",
    )
    record.add_argument("--stacks", action="store_true", help="record Python frames too")
    record.add_argument(
        "--prompt", metavar="TEXT|@FILE", help="text instead of random ids (checkpoints)"
    )
    record.add_argument("--seed", type=int, default=0)
    record.add_argument("--device", default="cuda:0")
    record.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="DIR",
        help="the run directory to make (default: runs/NAME)",
    )
    record.add_argument("--name", default=None)
    record.add_argument(
        "--upload", metavar="URL", help="send the run to this server when it is recorded"
    )
    _add_sending_options(record, patience_s=30.0)

    replay = add("replay", replay_command, "Redo the kernel replay of an existing run directory.")
    replay.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    replay.add_argument("--replay-runs", type=int, default=150, metavar="N")
    replay.add_argument("--replay-budget", type=float, default=None, metavar="SECONDS")
    replay.add_argument("--device", default="cuda:0")

    floor = add("floor", floor_command, "The launch floor of this host, by launch API.")
    floor.add_argument("--runs", type=int, default=500, metavar="N")
    floor.add_argument("--device", default="cuda:0")
    floor.add_argument("--json", action="store_true", help="print the raw samples")

    doctor = add("doctor", doctor_command, "What this host can do for a recording.", torch=False)
    doctor.add_argument("--json", action="store_true")

    upload = add(
        "upload",
        upload_command,
        "Send runs to a server; without a run, what is spooled.",
        torch=False,
    )
    upload.allow_abbrev = False  # --token is not --token-file: no token on a command line
    upload.add_argument(
        "paths", nargs="*", type=Path, metavar="RUN_DIR", help="run directories or trace files"
    )
    upload.add_argument("--to", metavar="URL", help="the server, such as https://host:8443")
    _add_sending_options(upload, patience_s=300.0)
    upload.add_argument(
        "--wait", action="store_true", help="wait until the server has converted the runs"
    )
    upload.add_argument("--list", action="store_true", help="show what is spooled, send nothing")
    upload.add_argument("--json", action="store_true", help="print one JSON object a run")
    return parser


def _add_sending_options(parser: argparse.ArgumentParser, patience_s: float) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the server's token (default: HOSTBOUND_TOKEN)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="send the token over plain http to another host"
    )
    parser.add_argument(
        "--spool",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="where runs to be sent are noted (default: ~/.local/state/hostbound/spool)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=patience_s,
        metavar="SECONDS",
        help="give up after this long without progress (default: %(default)g)",
    )
    parser.add_argument(
        "--delete-after",
        action="store_true",
        help="delete the run here once the server has acknowledged its hash",
    )


def record_command(args: argparse.Namespace) -> int:
    """Record a model or a script; send it if that was asked for."""
    if args.upload is not None:
        from collector import sending

        # Before the work, not after it.
        args.upload = sending.check(_sending_options(args), args.upload)
    written = _record_script(args) if args.script is not None else _record_model(args)
    sys.stdout.write(f"{written}\n")
    return 0 if args.upload is None else _send_recorded(args, written)


def _record_model(args: argparse.Namespace) -> Path:
    from collector.errors import CollectorError
    from collector.record import Request, record

    prompt = args.prompt
    if prompt and prompt.startswith("@"):
        try:
            prompt = Path(prompt[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CollectorError(f"{prompt[1:]} cannot be read as text: {error}.") from error
    if args.turns == "":  # as a path it would be this folder
        raise CollectorError("--turns is empty; name a folder that the recordings share.")
    request = Request(
        model=args.model,
        mode=args.mode,
        batch_size=args.batch_size,
        prompt_len=args.prompt_len,
        new_tokens=args.new_tokens,
        attention=args.attention,
        experts=args.experts,
        dtype=args.dtype,
        device=args.device,
        warmup=args.warmup,
        latency_runs=args.latency_runs,
        trace_runs=args.trace_runs,
        replay_runs=args.replay_runs,
        replay=not args.no_replay,
        replay_budget_s=args.replay_budget,
        stacks=args.stacks,
        prompt=prompt,
        seed=args.seed,
        all_logits=args.all_logits,
        steady_budget_s=args.steady_budget,
        like=args.like,
        turns=None if args.turns is None else Path(args.turns),
        turns_of=args.turns_of,
        turns_patience_s=args.turns_patience,
    )
    name = args.name or _name(request)
    return record(request, args.out or Path("runs") / name, name)


def _name(request: Any) -> str:
    parts = [Path(request.model).name, request.mode, f"bs{request.batch_size}"]
    parts += [f"s{request.prompt_len}", f"m{request.new_tokens}"]
    if request.experts:
        parts.append(request.experts)
    return "-".join(parts)


def _record_script(args: argparse.Namespace) -> Path:
    from collector.errors import CollectorError
    from collector.recorder import recording

    if not args.script or not Path(args.script[0]).is_file():
        raise CollectorError(
            f"--script names no file: {args.script[0] if args.script else 'nothing was given'}."
        )
    if args.like is not None:
        raise CollectorError(
            "--like is for --model: a script is recorded once, at whatever speed the host has then."
        )
    if args.turns is not None:
        raise CollectorError("--turns is for --model: a script is recorded once, in one piece.")
    name = args.name or Path(args.script[0]).stem
    out = args.out or Path("runs") / name
    device = args.device if args.device != "cuda:0" else None
    before = sys.argv
    sys.argv = list(args.script)
    try:
        with recording(out, name=name, device=device, stacks=args.stacks):
            try:
                runpy.run_path(args.script[0], run_name="__main__")
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise CollectorError(
                        f"{args.script[0]} ended with {error.code}; nothing was recorded."
                    ) from error
    finally:
        sys.argv = before
    return out


def _sending_options(args: argparse.Namespace) -> Any:
    from collector.sending import Options

    return Options(
        token_file=args.token_file,
        insecure=args.insecure,
        spool=args.spool,
        patience_s=args.patience,
        delete_after=args.delete_after,
        wait=getattr(args, "wait", False),
    )


def _send_recorded(args: argparse.Namespace, written: Path) -> int:
    """Spool and send a new run: it is recorded, so whatever happens now is no failure of that."""
    from collector import sending

    options = _sending_options(args)
    try:
        entry = options.open_spool().add(written, args.upload, options.delete_after)
        (outcome,) = sending.send(options, [entry])
    except KeyboardInterrupt:
        sys.stderr.write(f"collector: interrupted; {written} is recorded. {options.later()}\n")
        return 130
    except HostboundError as error:
        sys.stderr.write(f"collector: {written} is recorded but not sent: {error}\n")
        return 1
    if outcome.stored is not None:
        sys.stderr.write(f"{args.upload} has it as {outcome.stored.sha256}\n")
        return 0
    sys.stderr.write(f"collector: {outcome.error}\n")
    return int(outcome.code == 2)  # what is spooled is no finding


def upload_command(args: argparse.Namespace) -> int:
    """Send runs, or what is spooled; 1 if something stays spooled or was not converted."""
    from collector import sending
    from collector.errors import CollectorError

    options = _sending_options(args)
    spool = options.open_spool()
    code = 0
    try:
        if args.paths:
            if args.to is None:
                raise CollectorError("say where to send it: collector upload RUN_DIR --to URL.")
            to = sending.check(options, args.to)
            entries, troubles = spool.add_all(args.paths, to, options.delete_after)
            code = 2 if troubles else 0
        else:
            entries, troubles = spool.entries()
            to = args.to.rstrip("/") if args.to else None
            entries = [entry for entry in entries if to in (None, entry.url)]
            if not entries and not args.list:
                sys.stderr.write(f"collector: nothing is spooled in {spool.folder}.\n")
        for line in troubles:
            sys.stderr.write(f"collector: {line}\n")
        if args.list:
            return _list_spool(entries, args.json)
        for outcome in sending.send(options, entries):
            code = max(code, outcome.code)
            _print_outcome(outcome, args.json)
    except KeyboardInterrupt:
        sys.stderr.write(
            "collector: interrupted; what is not sent stays spooled, and `collector upload "
            "--spool` goes on with it.\n"
        )
        return 130
    return code


def _print_outcome(outcome: Any, as_json: bool) -> None:
    entry, stored, conversion = outcome.entry, outcome.stored, outcome.conversion
    error = str(outcome.error) if outcome.error else None
    if conversion is not None and conversion.state != "done":
        error = f"the server could not convert {entry.path}: {conversion.error}"
    run_ids = conversion.run_ids if conversion else stored.run_ids if stored else []
    if as_json:
        value = {
            "path": entry.path,
            "url": entry.url,
            "sha256": stored.sha256 if stored else entry.sha256,
            "state": conversion.state if conversion else "stored" if stored else entry.state,
            "sent_bytes": stored.sent_bytes if stored else None,
            "run_ids": run_ids,
            "error": error,
        }
        sys.stdout.write(orjson.dumps(value).decode() + "\n")
    elif stored is not None:
        runs = f", run {', '.join(run_ids)}" if run_ids else ""
        sys.stdout.write(f"{entry.path} is stored as {stored.sha256}{runs}\n")
    if error:
        sys.stderr.write(f"collector: {error}\n")
    sys.stdout.flush()


def _list_spool(entries: list[Any], as_json: bool) -> int:
    from dataclasses import asdict

    for entry in entries:
        if as_json:
            sys.stdout.write(orjson.dumps(asdict(entry)).decode() + "\n")
        else:
            sys.stdout.write(f"{entry.state:<8} {entry.path} -> {entry.url}\n")
            if entry.error:
                sys.stdout.write(f"{'':<8} {entry.error}\n")
    return 0


def replay_command(args: argparse.Namespace) -> int:
    """Replay again, and put the new samples and hashes into the run directory."""
    from collector.replay_again import replay_again

    replay_again(args.run_dir, args.device, args.replay_runs, args.replay_budget)
    sys.stdout.write(f"{args.run_dir}\n")
    return 0


def floor_command(args: argparse.Namespace) -> int:
    """Print the floors."""
    from collector import kernel_replay, record

    record.check_device(args.device)
    found = kernel_replay.floor(args.device, args.runs)
    if args.json:
        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    row = "{:<22} {:<28} {:>6} {:>9} {:>9} {:>9} {:>9}\n"
    sys.stdout.write(row.format("launch API", "definition", "n", "p5", "p50", "mean", "p95"))
    for entry in found["floors"]:
        samples = sorted(entry["samples_ns"])
        if not samples:
            continue
        n = len(samples)
        figures = [
            samples[n * 5 // 100],
            samples[n // 2],
            round(sum(samples) / n),
            samples[n * 95 // 100],
        ]
        sys.stdout.write(
            row.format(
                entry["launch_api"], entry["definition"], n, *[f"{v / 1e3:.2f} us" for v in figures]
            )
        )
    for name, text in found["definitions"].items():
        sys.stdout.write(f"{name}: {text}\n")
    for api, why in found["missing"].items():
        sys.stderr.write(f"collector: no floor for {api}: {why}\n")
    return 1 if found["missing"] else 0


def doctor_command(args: argparse.Namespace) -> int:
    """Print the checks; 1 if something is missing."""
    from dataclasses import asdict

    from collector.doctor import examine

    checks = examine()
    if args.json:
        sys.stdout.write(orjson.dumps([asdict(c) for c in checks]).decode() + "\n")
    else:
        for check in checks:
            sys.stdout.write(f"{check.state:<8} {check.name:<14} {check.found}\n")
            if check.remedy:
                sys.stdout.write(f"{'':<23} -> {check.remedy}\n")
    return 1 if any(check.state == "missing" for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
