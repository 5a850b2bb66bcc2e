"""What changed between the mean steps of two runs: accounts, kernels, ops.

Kernels are aligned by identity, what is left by name; ops by name. Integer nanoseconds, counts a
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from analyzer.attribution import classification
from analyzer.queries.costs import AccountTime
from analyzer.queries.records import Kernel, Op
from analyzer.reports.comparison.fusion import Fusions
from analyzer.reports.records import AccountChange, ComparedRun, KernelChange, OpChange

TAIL = "device_tail"
# A kernel's mean duration that changed by less is the same.
SAME = 0.05


@dataclass
class _Aligned:
    """Kernels of one run that stand for one side of a change, a step."""

    kernel: Kernel
    count: float = 0.0
    ns: float = 0.0
    ops: set[str | None] = field(default_factory=set[str | None])


def waterfall(a: ComparedRun, b: ComparedRun) -> list[AccountChange]:
    """From the base's mean step to the other's, by account; adds up up to rounding."""
    nothing = AccountTime(0, 0)
    rows: list[AccountChange] = []
    for account in classification.ACCOUNTS:
        before, after = a.ledger.get(account, nothing), b.ledger.get(account, nothing)
        rows.append(_account_change(account, before, after))
    tails = [run.per_step.elapsed_ns - run.per_step.wall_ns for run in (a, b)]
    rows.append(_account_change(TAIL, AccountTime(tails[0], 0), AccountTime(tails[1], 0)))
    return rows


def _account_change(account: str, before: AccountTime, after: AccountTime) -> AccountChange:
    return AccountChange(
        account,
        before.ns,
        after.ns,
        after.ns - before.ns,
        before.exposed_ns,
        after.exposed_ns,
    )


def kernel_changes(
    a: Sequence[Kernel], b: Sequence[Kernel], steps_a: int, steps_b: int, fused: Fusions
) -> list[KernelChange]:
    """Kernels by identity, what is left by name; largest change first.

    Args:
        fused: The base's ops that a fused kernel does, or the fused kernels that do the work of
            one that vanished; see `fusion.py`.
    """
    left, right = _by_identity(a, steps_a), _by_identity(b, steps_b)
    changes = [_change(left[key], right[key], "identity") for key in left if key in right]
    gone = _by_name(entry for key, entry in left.items() if key not in right)
    new = _by_name(entry for key, entry in right.items() if key not in left)
    for name in dict.fromkeys([*gone, *new]):
        change = _change(gone.get(name), new.get(name), "name")
        other: list[str] = []
        if change.status == "appeared":
            other = list(fused.ops.get(name, ()))
        elif change.status == "vanished":
            other = _fused_kernels(gone[name].ops, fused)
        changes.append(replace(change, status="fused", fused=other) if other else change)
    return sorted(changes, key=lambda change: -abs(change.change_ns))


def _fused_kernels(ops: set[str | None], fused: Fusions) -> list[str]:
    """The fused kernels that do the work of these ops; none unless each of them has some."""
    found = [fused.kernels.get(op, ()) if op is not None else () for op in ops]
    return sorted({kernel for kernels in found for kernel in kernels}) if all(found) else []


def _by_identity(kernels: Iterable[Kernel], steps: int) -> dict[tuple[object, ...], _Aligned]:
    """By name, op, shapes and configuration."""
    return {
        (
            kernel.kernel,
            kernel.op,
            kernel.input_dims,
            kernel.input_types,
            kernel.input_strides,
            kernel.grid,
            kernel.block,
            kernel.shared_memory,
        ): _Aligned(kernel, kernel.kernels / steps, kernel.device_ns / steps)
        for kernel in kernels
    }


def _by_name(rest: Iterable[_Aligned]) -> dict[str, _Aligned]:
    result: dict[str, _Aligned] = {}
    for one in rest:
        entry = result.setdefault(one.kernel.kernel, _Aligned(one.kernel))
        entry.ops.add(one.kernel.op)
        entry.count += one.count
        entry.ns += one.ns
    return result


def _change(a: _Aligned | None, b: _Aligned | None, by: str) -> KernelChange:
    known = a or b
    assert known is not None
    before, after = a.ns if a else 0.0, b.ns if b else 0.0
    return KernelChange(
        kernel=known.kernel.kernel,
        clean_name=known.kernel.clean_name,
        op=known.kernel.op,
        family=known.kernel.family,
        aligned_by=by,
        status="vanished" if b is None else "appeared" if a is None else _status(a, b),
        fused=[],
        before=a.count if a else 0,
        after=b.count if b else 0,
        before_ns=round(before),
        after_ns=round(after),
        change_ns=round(after - before),
    )


def _status(a: _Aligned, b: _Aligned) -> str:
    mean_a, mean_b = a.ns / a.count, b.ns / b.count
    relative = mean_b / mean_a - 1 if mean_a else 0.0
    status = "same" if abs(relative) <= SAME else "faster" if relative < 0 else "slower"
    if a.count != b.count:
        status = f"{status}, {'more' if b.count > a.count else 'fewer'}"
    return status


def op_changes(
    a: Sequence[Op],
    b: Sequence[Op],
    steps_a: int,
    steps_b: int,
    fused: Fusions,
    kernels_b: Iterable[Kernel],
) -> list[OpChange]:
    """Ops by name, largest change first.

    Args:
        fused: The fused kernels of an op that vanished, the base's ops of one that appeared and
            launches nothing but fused kernels.
        kernels_b: Those of the run that `b` is of.
    """
    left, right = ({op.op: op for op in ops} for ops in (a, b))
    launched: dict[str | None, set[str]] = {}
    for kernel in kernels_b:
        launched.setdefault(kernel.op, set()).add(kernel.kernel)
    changes: list[OpChange] = []
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name), right.get(name)
        before = one.host_ns / steps_a if one else 0.0
        after = two.host_ns / steps_b if two else 0.0
        status = "appeared" if not one else "vanished" if not two else "both"
        others: set[str] = set()
        if status == "vanished":
            others.update(fused.kernels.get(name, ()))
        elif status == "appeared" and all(k in fused.ops for k in launched.get(name, ())):
            others.update(op for k in launched.get(name, ()) for op in fused.ops[k])
        changes.append(
            OpChange(
                op=name,
                status="fused" if others else status,
                fused=sorted(others),
                before_launches=one.launches / steps_a if one else 0,
                after_launches=two.launches / steps_b if two else 0,
                before_ns=round(before),
                after_ns=round(after),
                change_ns=round(after - before),
            )
        )
    return sorted(changes, key=lambda change: -abs(change.change_ns))
